//! The server's certificate.

use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_redis::read_file;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

use crate::section::Server;

/// What makes connections secure, where the config asks for it.
pub(crate) fn acceptor(server: &Server, folder: &Path) -> Result<Option<TlsAcceptor>, String> {
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
    let read =
        |field: &str, path: &Path| read_file(path, 1).map_err(|error| wrong(field, path, &error));
    let pem = read("tls_cert", &certificate)?;
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|error| wrong("tls_cert", &certificate, &error))?;
    let private = PrivateKeyDer::from_pem_slice(&read("tls_key", &key)?);
    let private = private.map_err(|error| wrong("tls_key", &key, &error))?;
    let provider = Arc::new(crypto::ring::default_provider());
    let clients = match &server.tls_client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(path) => {
            let path = folder.join(path);
            let fault = |error: &dyn std::fmt::Display| wrong("tls_client_ca", &path, error);
            let mut roots = RootCertStore::empty();
            for signer in CertificateDer::pem_slice_iter(&read("tls_client_ca", &path)?) {
                let signer = signer.map_err(|error| fault(&error))?;
                roots.add(signer).map_err(|error| fault(&error))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
            verifier.build().map_err(|error| fault(&error))?
        }
    };
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            let config = config.with_client_cert_verifier(clients);
            config.with_single_cert(chain, private)
        });
    let mut config = config.map_err(|error| wrong("tls_cert", &certificate, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}
