//! Flags beat the environment, which beats the file: all of them made into one config.

use std::path::{Path, PathBuf};

use tidegate::ScriptSource;
use tidegate_config::{Config, ConfigErrors, Secret, StoreUrl, read};

use crate::cli::Source;
use crate::section::{Address, Server};

/// Where the config comes from, each time it is read. The default is no file at all.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    file: Option<PathBuf>,
    store: Option<StoreUrl>,
    listen: Listen,
}

/// The addresses of the command line, each in place of the file's.
#[derive(Debug, Clone, Default)]
pub struct Listen {
    /// Where clients ask.
    pub http: Vec<Address>,
    /// Where operators ask.
    pub admin: Vec<Address>,
}

/// A config as it was read.
#[derive(Debug)]
pub struct Loaded {
    /// The stores and policies.
    pub config: Config,
    /// The section `[server]`.
    pub server: Server,
    /// What its relative paths are relative to.
    pub folder: PathBuf,
    /// Everything that was read to make it.
    pub seen: Seen,
}

/// What was read at a time, to tell whether it has changed since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What stood in the file, then in each of the files that it names.
    contents: Vec<Option<Vec<u8>>>,
    /// Their names.
    named: Vec<PathBuf>,
}

/// Why there is no config.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{file}: {error}: expected a config file, such as the ones in docs/policies.md")]
    File {
        /// Its name.
        file: String,
        /// What is wrong.
        error: std::io::Error,
    },
    /// It is no text.
    #[error("{0}: not UTF-8: expected a text file")]
    Encoding(String),
    /// What stands in it is wrong: a line each.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The store of the command line is none.
    #[error("--store: {0}")]
    Store(String),
    /// A secret is not where the config says.
    #[error("{field}: the environment variable {variable} {problem}")]
    Secret {
        /// The field that names it.
        field: String,
        /// The variable.
        variable: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Reads the text of a file: every section of it. `store` is where the store `default`
/// is, instead of what the file says.
pub fn parse(
    text: &str,
    file: &str,
    store: Option<&StoreUrl>,
) -> Result<(Server, Config), ConfigErrors> {
    read(text, file, |root| {
        let server = root.table("server").map(|fields| Server::read(&fields));
        (server.unwrap_or_default(), Config::from_root(root, store))
    })
}

impl Settings {
    /// What the command line says.
    pub fn new(source: &Source, listen: Listen) -> Result<Self, LoadError> {
        Ok(Self {
            file: source.config.clone(),
            store: source.store.clone().transpose().map_err(LoadError::Store)?,
            listen,
        })
    }

    /// Reads the config.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let file = self.file.as_deref().unwrap_or(Path::new(""));
        let name = file.display().to_string();
        let own = self.file.as_ref().map(std::fs::read).transpose();
        let own = own.map_err(|error| LoadError::File {
            file: name.clone(),
            error,
        })?;
        // An empty file says what no file does.
        let text = std::str::from_utf8(own.as_deref().unwrap_or_default());
        let text = text.map_err(|_| LoadError::Encoding(name.clone()))?;
        let (mut server, config) = parse(text, &name, self.store.as_ref())?;
        for (given, used) in [
            (&self.listen.http, &mut server.http),
            (&self.listen.admin, &mut server.admin),
        ] {
            if !given.is_empty() {
                used.clone_from(given);
            }
        }
        let folder = self.folder();
        let named = files_named_in(&config, &server).into_iter();
        let named: Vec<PathBuf> = named.map(|path| folder.join(path)).collect();
        Ok(Loaded {
            seen: Seen::new(own, named),
            config,
            server,
            folder,
        })
    }

    /// What there is to read now of the files that were read `before`. `None` when the
    /// file is in the middle of being replaced, as when it is not there or empty, and
    /// when it is no file: a pipe can be read only once.
    #[must_use]
    pub fn look(&self, before: &Seen) -> Option<Seen> {
        let own = match &self.file {
            Some(file) => {
                let is_file = std::fs::metadata(file).is_ok_and(|it| it.is_file());
                let bytes = is_file.then(|| std::fs::read(file).ok()).flatten()?;
                Some(bytes).filter(|bytes| !bytes.is_empty())?.into()
            }
            None => None,
        };
        Some(Seen::new(own, before.named.clone()))
    }

    fn folder(&self) -> PathBuf {
        let folder = self.file.as_deref().and_then(Path::parent);
        folder.map(Path::to_owned).unwrap_or_default()
    }
}

impl Seen {
    fn new(own: Option<Vec<u8>>, named: Vec<PathBuf>) -> Self {
        // What is missing will be said by whoever needs it.
        let files = named.iter().map(|path| std::fs::read(path).ok());
        Self {
            contents: std::iter::once(own).chain(files).collect(),
            named,
        }
    }
}

/// Scripts and certificates.
fn files_named_in<'c>(config: &'c Config, server: &'c Server) -> Vec<&'c str> {
    let scripts = config.policies.iter().filter_map(|policy| {
        let source = policy.script()?.source();
        match source {
            ScriptSource::File(path) => Some(&**path),
            ScriptSource::Text(_) => None,
        }
    });
    let stores = config.stores.values();
    let stores = stores.flat_map(|store| [&store.tls_ca, &store.tls_cert, &store.tls_key]);
    let own = [&server.tls_cert, &server.tls_key];
    let certificates = stores.chain(own).filter_map(Option::as_deref);
    scripts.chain(certificates).collect()
}

/// The value of a secret.
pub fn reveal(secret: &Secret, field: &str) -> Result<String, LoadError> {
    let variable = match secret {
        Secret::Text(text) => return Ok(text.clone()),
        Secret::Env(variable) => variable,
    };
    let fault = |problem| LoadError::Secret {
        field: field.into(),
        variable: variable.clone(),
        problem,
    };
    match std::env::var(variable) {
        Ok(value) if value.is_empty() => Err(fault("is empty: expected a token")),
        Ok(value) if !value.bytes().all(|byte| byte.is_ascii_graphic()) => Err(fault(
            "has spaces or other signs: expected visible ASCII characters",
        )),
        Ok(value) => Ok(value),
        Err(_) => Err(fault("is not set: expected the token in it")),
    }
}
