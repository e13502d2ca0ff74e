//! An nginx of one process with a config of its own, killed when it is dropped.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_testkit::process::free_port;

/// How long an nginx may take to listen.
const START: Duration = Duration::from_secs(60);

/// Where Debian keeps the modules of nginx.
const MODULES: &str = "/usr/lib/nginx/modules";

/// A config that serves one small file.
pub(super) struct Config {
    modules: Vec<PathBuf>,
    http: String,
    server: String,
}

impl Config {
    /// With these lines in `http` and in `server`.
    pub(super) fn new(http: &str, server: &str) -> Self {
        Self {
            modules: Vec::new(),
            http: http.into(),
            server: server.into(),
        }
    }

    /// And this module.
    pub(super) fn module(mut self, module: &Path) -> Self {
        self.modules.push(module.into());
        self
    }

    /// And Lua.
    pub(super) fn lua(self) -> Self {
        let modules = Path::new(MODULES);
        let kit = modules.join("ndk_http_module.so");
        self.module(&kit)
            .module(&modules.join("ngx_http_lua_module.so"))
    }

    fn text(&self, folder: &Path, port: u16) -> String {
        let Self {
            modules,
            http,
            server,
        } = self;
        let modules: String = modules
            .iter()
            .map(|module| format!("load_module {};\n", module.display()))
            .collect();
        let folder = folder.display();
        format!(
            "{modules}daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log error;\nevents {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\nkeepalive_requests 100000000;\n{http}\nserver {{\nlisten 127.0.0.1:{port};\nroot {folder};\n{server}\n}}\n}}\n"
        )
    }
}

/// A running nginx.
pub(super) struct Nginx {
    process: Child,
    folder: PathBuf,
    port: u16,
}

impl Nginx {
    pub(super) fn start(config: &Config) -> Self {
        let port = free_port();
        let folder = std::env::temp_dir();
        let folder = folder.join(format!("tidegate-bench-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a place for a config");
        let (file, page) = (folder.join("nginx.conf"), folder.join("index.html"));
        std::fs::write(&file, config.text(&folder, port)).expect("a place for a config");
        std::fs::write(page, "a small file\n").expect("a place for a page");
        // Servers lie where only root looks for programs.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
        let process = Command::new("nginx")
            .env("PATH", path)
            .args(["-p".as_ref(), folder.as_os_str(), "-c".as_ref()])
            .arg(&file)
            .stderr(Stdio::null())
            .spawn();
        let process = process.expect("nginx is installed by `cargo xtask bench nginx`");
        let mut nginx = Self {
            process,
            folder,
            port,
        };
        let deadline = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = || std::fs::read_to_string(nginx.folder.join("error.log"));
            if let Ok(Some(status)) = nginx.process.try_wait() {
                panic!("nginx has ended with {status}: {:?}", log());
            }
            assert!(Instant::now() < deadline, "nginx does not listen");
            std::thread::yield_now();
        }
        nginx
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}
