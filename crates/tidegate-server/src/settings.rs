//! Merges flags, environment and file into one config. Flags beat the environment, which beats the file.

use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use tidegate::ScriptSource;
use tidegate_config::{Config, ConfigErrors, Secret, StoreUrl, read};
use tidegate_redis::{read_file, read_text};

use crate::cli::{Addresses, Level, Source};
use crate::envoy::rules::{Domains, MAX_MEBIBYTES, RulesErrors, files, read_all};
use crate::envoy::section::Envoy;
use crate::section::{Address, Server};

/// Where the config comes from, each time it is read. The default is no file at all.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    file: Option<PathBuf>,
    /// What the environment says, in the form of a file, where there is none.
    text: String,
    store: Option<StoreUrl>,
    listen: Listen,
}

/// What the command line says in place of the file's section `[server]`.
#[derive(Debug, Clone, Default)]
pub struct Listen {
    /// Where to listen.
    pub addresses: Addresses,
    /// Where clients ask if neither `http` nor the file says so.
    pub http_default: Vec<Address>,
    /// How much to log.
    pub log: Option<Level>,
    /// How long to keep answering after SIGTERM.
    pub drain: Option<Duration>,
    /// How long a connection may be idle.
    pub idle: Option<Duration>,
}

/// A config as it was read.
#[derive(Debug)]
pub struct Loaded {
    /// The stores and policies.
    pub config: Config,
    /// The section `[server]`.
    pub server: Server,
    /// Envoy's limits, where they do not come from files that the config names.
    pub rules: Option<Domains>,
    /// What its relative paths are relative to.
    pub folder: PathBuf,
    /// Whether the file has policies, or `policies = []`. Otherwise, they are the default.
    pub names_policies: bool,
    /// Everything that was read to make it.
    pub seen: Seen,
    /// Fields of the file that the command line or the environment takes the place of,
    /// in words for the log.
    pub replaced: Vec<String>,
}

/// What was read at a time, to tell whether it has changed since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Hashes of what stood in the file, then in each of the files that it names: some
    /// of them are keys, which are not kept.
    contents: Vec<Option<u64>>,
    /// Their names.
    named: Vec<PathBuf>,
    /// The file or directory of Envoy's limits, and a hash of what is in it.
    rules: Option<(PathBuf, Option<u64>)>,
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
    /// Its content is wrong: one line per error.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Envoy's limits are wrong: a line each.
    #[error(transparent)]
    Rules(#[from] RulesErrors),
    /// They cannot be found.
    #[error("envoy.config: {path}: {error}: expected a YAML file, or a directory of them")]
    NoRules {
        /// Where they should be.
        path: String,
        /// What is wrong.
        error: std::io::Error,
    },
    /// The store of the command line is none.
    #[error("--store: {0}")]
    Store(String),
    /// A secret is not where the config says.
    #[error("{field}: {place} {problem}")]
    Secret {
        /// The field that names it.
        field: String,
        /// The variable, or the file.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Reads the text of a file: every section of it. `store` is where the store `default`
/// is, instead of what the file says.
pub fn parse(
    text: &str,
    file: &str,
    store: Option<&StoreUrl>,
) -> Result<(Server, Config), ConfigErrors> {
    let (server, config, _) = parse_all(text, file, store)?;
    Ok((server, config))
}

/// [`parse`], and the fields of `[server]` that name addresses; and `policies`, where the
/// file has any or says that there are none.
fn parse_all(
    text: &str,
    file: &str,
    store: Option<&StoreUrl>,
) -> Result<(Server, Config, Vec<&'static str>), ConfigErrors> {
    read(text, file, |root| {
        let mut named = Vec::new();
        named.extend(Some("policies").filter(|name| root.has(name)));
        let envoy = root.table("envoy").map(|fields| Envoy::read(&fields));
        let server = root.table("server").map(|fields| {
            let fields_of_addresses = ["http", "admin", "resp", "grpc"].into_iter();
            named.extend(fields_of_addresses.filter(|name| fields.has(name)));
            Server::read(&fields)
        });
        let mut server = server.unwrap_or_default();
        server.envoy = envoy.unwrap_or_default();
        (server, Config::from_root(root, store), named)
    })
}

impl Settings {
    /// What the command line says.
    pub fn new(source: &Source, listen: Listen) -> Result<Self, LoadError> {
        Ok(Self {
            file: source.config.clone(),
            text: String::new(),
            store: source.store.clone().transpose().map_err(LoadError::Store)?,
            listen,
        })
    }

    /// No file, at these addresses.
    #[must_use]
    pub fn listening(listen: Listen) -> Self {
        Self {
            listen,
            ..Self::default()
        }
    }

    /// No file, but this text in its place.
    #[must_use]
    pub(crate) fn written(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }

    /// Reads the config.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let file = self.file.as_deref().unwrap_or(Path::new(""));
        let name = match self.text.is_empty() {
            true => file.display().to_string(),
            false => "environment".into(),
        };
        let own = self.file.as_ref().map(|file| read_file(file, 1));
        let own = own.transpose();
        let own = own.map_err(|error| LoadError::File {
            file: name.clone(),
            error,
        })?;
        // An empty file says what no file does.
        let text = own.as_deref().unwrap_or(self.text.as_bytes());
        let text = std::str::from_utf8(text);
        let text = text.map_err(|_| LoadError::Encoding(name.clone()))?;
        let (mut server, config, named) = parse_all(text, &name, self.store.as_ref())?;
        let Listen {
            log, drain, idle, ..
        } = self.listen;
        server.log = log.unwrap_or(server.log);
        server.drain = drain.unwrap_or(server.drain);
        server.idle = idle.unwrap_or(server.idle);
        if !named.contains(&"http") && !self.listen.http_default.is_empty() {
            server.http.clone_from(&self.listen.http_default);
        }
        let (addresses, mut replaced) = (&self.listen.addresses, Vec::new());
        for (field, given, used) in [
            ("http", &addresses.http, &mut server.http),
            ("admin", &addresses.admin, &mut server.admin),
            ("resp", &addresses.resp, &mut server.resp),
            ("grpc", &addresses.grpc, &mut server.grpc),
        ] {
            if given.is_empty() {
                continue;
            }
            if named.contains(&field) && used != given {
                let variable = field.to_uppercase();
                let given: Vec<String> = given.iter().map(ToString::to_string).collect();
                let given = given.join(", ");
                replaced.push(format!("server.{field} in {name} is not used: --{field} or TIDEGATE_{variable} says {given}"));
            }
            used.clone_from(given);
        }
        let folder = self.folder();
        let names_policies = named.contains(&"policies");
        let named = files_named_in(&config, &server).into_iter();
        let named: Vec<PathBuf> = named.map(|path| folder.join(path)).collect();
        let rules = server.envoy.config.as_ref().map(|path| folder.join(path));
        Ok(Loaded {
            seen: Seen::new(own, named, rules),
            rules: None,
            names_policies,
            config,
            server,
            folder,
            replaced,
        })
    }

    /// Why the file cannot be read, if it cannot: it may be gone.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        let error = std::fs::metadata(file).err()?;
        Some(format!("{}: {error}", file.display()))
    }

    /// What there is to read now of the files that were read `before`. `None` when the
    /// file is in the middle of being replaced, as when it is not there or empty, and
    /// when it is no file: a pipe can be read only once.
    #[must_use]
    pub fn look(&self, before: &Seen) -> Option<Seen> {
        let own = match &self.file {
            Some(file) => {
                let is_file = std::fs::metadata(file).is_ok_and(|it| it.is_file());
                match is_file.then(|| read_file(file, 1))? {
                    Ok(bytes) if !bytes.is_empty() => Some(bytes),
                    // Loading it says what is wrong. No other file looks like this.
                    Err(error) if error.kind() == ErrorKind::FileTooLarge => Some(Vec::new()),
                    Ok(_) | Err(_) => return None,
                }
            }
            None => None,
        };
        let rules = before.rules.as_ref().map(|(path, _)| path.clone());
        let seen = Seen::new(own, before.named.clone(), rules);
        // A directory without files is one that is being replaced, too.
        let is_there = seen.rules.as_ref().is_none_or(|(_, hash)| hash.is_some());
        is_there.then_some(seen)
    }

    fn folder(&self) -> PathBuf {
        let folder = self.file.as_deref().and_then(Path::parent);
        folder.map(Path::to_owned).unwrap_or_default()
    }
}

impl Seen {
    /// Of a config that was not read.
    pub(crate) fn nothing() -> Self {
        Self::new(None, Vec::new(), None)
    }

    fn new(own: Option<Vec<u8>>, named: Vec<PathBuf>, rules: Option<PathBuf>) -> Self {
        // The reader of a file reports that it is missing.
        static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let hash = |bytes: Vec<u8>| HASH.hash_one(bytes);
        let files_named = named.iter().map(|path| read_file(path, 1).ok().map(hash));
        let hash_rules = |path: PathBuf| {
            let files = files(&path).ok().filter(|files| !files.is_empty());
            let read = |file: PathBuf| (read_file(&file, MAX_MEBIBYTES).ok(), file);
            let contents = files.map(|files| files.into_iter().map(read).collect::<Vec<_>>());
            let hash = contents.map(|contents| HASH.hash_one(contents));
            (path, hash)
        };
        Self {
            rules: rules.map(hash_rules),
            contents: std::iter::once(own.map(hash)).chain(files_named).collect(),
            named,
        }
    }
}

/// Envoy's limits in this file or directory.
pub(crate) fn rules(path: &Path, envoy: &Envoy) -> Result<Domains, LoadError> {
    let files = files(path).map_err(|error| LoadError::NoRules {
        path: path.display().to_string(),
        error,
    })?;
    let drafts = read_all(&files)?;
    Ok(Domains::build(drafts, &envoy.defaults())?)
}

/// Scripts, certificates and tokens.
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
    let own = [&server.tls_cert, &server.tls_key, &server.tls_client_ca];
    let certificates = stores.chain(own).filter_map(Option::as_deref);
    let tokens = [&server.admin_token, &server.resp_token].into_iter();
    let tokens = tokens.filter_map(|token| match token {
        Some(Secret::File(path)) => Some(path.as_str()),
        Some(Secret::Env(_) | Secret::Text(_)) | None => None,
    });
    scripts.chain(certificates).chain(tokens).collect()
}

/// The value of a secret. Paths are relative to `folder`.
pub fn reveal(secret: &Secret, field: &str, folder: &Path) -> Result<String, LoadError> {
    let (place, value) = match secret {
        Secret::Text(text) => return Ok(text.clone()),
        Secret::Env(variable) => {
            let value = std::env::var(variable);
            let value = value.map_err(|_| "is not set: expected the token in it".to_owned());
            (format!("the environment variable {variable}"), value)
        }
        Secret::File(path) => {
            let path = folder.join(path);
            let value = read_text(&path, 1);
            let value = value.map_err(|error| format!("cannot be read: {error}"));
            (format!("the file {}", path.display()), value)
        }
    };
    let fault = |problem: &str| LoadError::Secret {
        field: field.into(),
        place: place.clone(),
        problem: problem.into(),
    };
    let value = value.map_err(|problem| fault(&problem))?;
    match value.trim_end_matches(['\r', '\n']) {
        "" => Err(fault("is empty: expected a token")),
        value if !value.bytes().all(|byte| byte.is_ascii_graphic()) => Err(fault(
            "has spaces or other characters: expected visible ASCII characters",
        )),
        value => Ok(value.to_owned()),
    }
}
