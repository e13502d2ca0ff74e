//! An authority of the test's own, and what it has signed: made by `openssl`, in a
//! folder that goes when the test is over.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// `authority.crt`, `server.crt` and `client.crt`, each with its key.
pub(crate) struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    pub(crate) fn make() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-certificates-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let made = Self { folder };
        made.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
             -subj /CN=authority -keyout authority.key -out authority.crt",
        );
        let names = "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
        std::fs::write(made.folder.join("names"), names).expect("a file");
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

    pub(crate) fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }

    pub(crate) fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.folder.join(file)).expect("a file that was made")
    }

    fn openssl(&self, arguments: &str) {
        let status = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(&self.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let status = status.expect("openssl is installed by `cargo xtask test`");
        assert!(status.success(), "openssl {arguments}");
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}
