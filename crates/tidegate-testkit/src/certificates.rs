//! An authority of the test's own, and what it has signed: made by `openssl`, in a
//! folder that goes when the test is over.

use std::process::{Command, Stdio};

use crate::process::Folder;

/// `authority.crt`, `server.crt` and `client.crt`, each with its key.
pub struct Certificates {
    folder: Folder,
}

impl Certificates {
    pub fn make() -> Self {
        let made = Self {
            folder: Folder::new(),
        };
        made.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
             -subj /CN=authority -keyout authority.key -out authority.crt",
        );
        let names = "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
        made.folder.write("names", names);
        for name in ["server", "client"] {
            made.openssl(&format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} \
                 -keyout {name}.key -out {name}.csr"
            ));
            made.openssl(&format!(
                "x509 -req -in {name}.csr -CA authority.crt -CAkey authority.key \
                 -CAcreateserial -days 2 -extfile names -out {name}.crt"
            ));
        }
        made
    }

    pub fn path(&self, file: &str) -> String {
        self.folder.path(file).display().to_string()
    }

    pub fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.folder.path(file)).expect("a file that was made")
    }

    /// Arguments of a Redis server or sentinel, between spaces: TLS at this port, for clients
    /// without certificates, replicas and masters.
    pub fn redis(&self, port: &str) -> String {
        let [certificate, key, authority] =
            ["server.crt", "server.key", "authority.crt"].map(|file| self.path(file));
        format!(
            "--tls-port {port} --tls-cert-file {certificate} --tls-key-file {key} \
             --tls-ca-cert-file {authority} --tls-auth-clients no --tls-replication yes"
        )
    }

    fn openssl(&self, arguments: &str) {
        let status = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(self.folder.root())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let status = status.expect("openssl is installed by `cargo xtask test`");
        assert!(status.success(), "openssl {arguments}");
    }
}
