//! The server's certificate.

use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_redis::read_file;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

use crate::section::Server;

/// What makes connections secure.
pub(crate) struct Acceptors {
    /// For any client.
    any: TlsAcceptor,
    /// Verifies client certificates, if the config names their CA.
    known: Option<TlsAcceptor>,
}

impl Acceptors {
    /// Those that the config asks for.
    pub(crate) fn new(server: &Server, folder: &Path) -> Result<Option<Self>, String> {
        let (Some(certificate), Some(key)) = (&server.tls_cert, &server.tls_key) else {
            return Ok(None);
        };
        let (certificate, key) = (folder.join(certificate), folder.join(key));
        let wrong = |field: &str, path: &Path, error: &dyn std::fmt::Display| {
            format!(
                "server.{field}: {}: {error}: expected a PEM file",
                path.display()
            )
        };
        let read = |field: &str, path: &Path| {
            read_file(path, 1).map_err(|error| wrong(field, path, &error))
        };
        let pem = read("tls_cert", &certificate)?;
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(&pem).collect();
        let chain = chain.map_err(|error| wrong("tls_cert", &certificate, &error))?;
        let private = PrivateKeyDer::from_pem_slice(&read("tls_key", &key)?);
        let private = private.map_err(|error| wrong("tls_key", &key, &error))?;
        let provider = Arc::new(crypto::ring::default_provider());
        let acceptor = |clients: Arc<dyn ClientCertVerifier>| {
            let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()
                .and_then(|config| {
                    let config = config.with_client_cert_verifier(clients);
                    config.with_single_cert(chain.clone(), private.clone_key())
                });
            let mut config = config.map_err(|error| wrong("tls_cert", &certificate, &error))?;
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            Ok::<_, String>(TlsAcceptor::from(Arc::new(config)))
        };
        let known = server.tls_client_ca.as_ref().map(|path| {
            let path = folder.join(path);
            let fault = |error: &dyn std::fmt::Display| wrong("tls_client_ca", &path, error);
            let mut roots = RootCertStore::empty();
            for signer in CertificateDer::pem_slice_iter(&read("tls_client_ca", &path)?) {
                let signer = signer.map_err(|error| fault(&error))?;
                roots.add(signer).map_err(|error| fault(&error))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
            acceptor(verifier.build().map_err(|error| fault(&error))?)
        });
        Ok(Some(Self {
            any: acceptor(WebPkiClientVerifier::no_client_auth())?,
            known: known.transpose()?,
        }))
    }

    /// The one for a listener whose clients must show a certificate, or need not.
    pub(crate) fn acceptor(&self, asks: bool) -> &TlsAcceptor {
        self.known.as_ref().filter(|_| asks).unwrap_or(&self.any)
    }
}
