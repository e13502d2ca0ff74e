//! Builds a limiter from a config, and reads the environment variables and files it names.

use std::collections::BTreeMap;
use std::env::VarError;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tidegate::{PoliciesError, PolicyError};
use tidegate_config::{Config, RedisUrl, Secret, StoreUrl};

use crate::credentials::{Certificates, Credentials, Password};
use crate::error::StoreError;
use crate::options::RedisOptions;
use crate::policies::Policies;
use crate::policy::AnyStore;
use crate::store::RedisStore;

/// Why a limiter cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The policies and stores do not fit together.
    #[error(transparent)]
    Policies(#[from] PoliciesError),
    /// The limit's name or settings are invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The script of a policy cannot be used.
    #[error("the script of policy {policy:?}: {problem}")]
    Script {
        /// The policy's name.
        policy: String,
        /// What is wrong.
        problem: String,
    },
    /// A store cannot be made from the config.
    #[error("store {store:?}: {problem}")]
    Store {
        /// The store's name.
        store: String,
        /// What is wrong.
        problem: String,
    },
}

impl Policies {
    /// A limiter for the policies and stores of a config. Relative paths in the config are
    /// relative to `folder`, the folder of the config file.
    ///
    /// This does not connect, so it succeeds even if a store is down.
    ///
    /// ```no_run
    /// use std::path::Path;
    /// use tidegate::Cost;
    /// use tidegate_config::Config;
    /// use tidegate_redis::Policies;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::parse(&std::fs::read_to_string("tidegate.toml")?, "tidegate.toml")?;
    /// let policies = Policies::from_config(&config, Path::new(""))?;
    /// let decision = policies.check("login", &[("ip", "203.0.113.7")], Cost::ONE).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_config(config: &Config, folder: &Path) -> Result<Self, SetupError> {
        Self::of(config, folder, None).inspect(|made| made.commit(config))
    }

    /// A limiter for another config that keeps the counters and connections of this one, in
    /// every store whose settings did not change.
    pub fn reconfigured(&self, config: &Config, folder: &Path) -> Result<Self, SetupError> {
        let made = self.prepare(config, folder);
        made.inspect(|made| made.commit(config))
    }

    /// The first half of [`reconfigured`](Self::reconfigured), for callers with more to verify
    /// before they use the new limiter. Nothing changes for this one: drop the new limiter to
    /// stay with the old config, or [`commit`](Self::commit) it.
    pub fn prepare(&self, config: &Config, folder: &Path) -> Result<Self, SetupError> {
        Self::of(config, folder, Some(self))
    }

    fn of(config: &Config, folder: &Path, before: Option<&Self>) -> Result<Self, SetupError> {
        let mut stores = BTreeMap::new();
        for (name, store) in &config.stores {
            let before = before.and_then(|before| before.stores.get(name.as_str()));
            let made = make(name, store, folder, before);
            let made = made.map_err(|problem| SetupError::Store {
                store: name.clone(),
                problem,
            })?;
            stores.insert(name.as_str().into(), made);
        }
        Self::prepared(stores, config.policies.iter().cloned(), folder, before)
    }

    /// The second half of [`reconfigured`](Self::reconfigured): puts into force what this
    /// [prepared](Self::prepare) limiter shares with the one before it, which are the bounds of
    /// stores in memory and the sync intervals. `config` is the one it was prepared with.
    pub fn commit(&self, config: &Config) {
        self.commit_policies();
        for (name, store) in self.stores() {
            if let (AnyStore::Memory(memory), Some(config)) = (store, config.stores.get(name)) {
                memory.set_bounds(config.max_keys, config.when_full);
            }
        }
    }
}

fn make(
    name: &str,
    store: &tidegate_config::StoreConfig,
    folder: &Path,
    before: Option<&AnyStore>,
) -> Result<AnyStore, String> {
    if let Some(memory) = store.in_memory() {
        return Ok(match before {
            // Its bounds change when nothing can fail any more.
            Some(AnyStore::Memory(same)) => same.clone().into(),
            _ => memory.into(),
        });
    }
    let variable;
    let url = match &store.url {
        StoreUrl::Redis(url) if url.user() == "***" => {
            return Err("url: *** stands for a user and a password that were not printed: expected them in its place".into());
        }
        StoreUrl::Redis(url) => url.as_str(),
        StoreUrl::Env(name) => {
            variable = from_environment(name)?;
            let files = [
                ("tls_ca", &store.tls_ca),
                ("tls_cert", &store.tls_cert),
                ("tls_key", &store.tls_key),
            ];
            // Certificates would have no effect in the clear.
            let file = files.iter().find(|(_, path)| path.is_some());
            if let Some((field, _)) = file.filter(|_| !variable.tls()) {
                return Err(format!(
                    "{field}: has no effect with the redis:// URL of {name}: expected a rediss:// one"
                ));
            }
            if !variable.user().is_empty() && (store.username.is_some() || store.password.is_some())
            {
                return Err(format!(
                    "the URL of {name} has a user or a password, and so has the config: expected them in one place"
                ));
            }
            variable.as_str()
        }
        StoreUrl::Memory => "",
    };
    if let Some(Secret::Env(name)) = &store.password
        && std::env::var_os(name).is_none()
    {
        return Err(format!(
            "password: the environment variable {name} is not set"
        ));
    }
    let read = |path: &Option<String>| {
        let path = path.as_ref().map(|path| folder.join(path));
        path.map(|path| read_file(&path, 1).map_err(|error| format!("{}: {error}", path.display())))
            .transpose()
    };
    let mut options = RedisOptions::default()
        .name(name)
        .prefix(&store.prefix)
        .timeout(store.timeout)
        .connections(usize::try_from(store.connections).unwrap_or(usize::MAX))
        .replica_acks(store.replica_acks);
    let (authority, certificate) = (read(&store.tls_ca)?, read(&store.tls_cert)?);
    let own = certificate.zip(read(&store.tls_key)?);
    let password = store.password.as_ref().map(|password| match password {
        Secret::Text(text) => Password::Text(text.clone()),
        Secret::Env(name) => Password::Env(name.clone()),
        Secret::File(path) => Password::File(folder.join(path)),
    });
    let has_any = authority.is_some() || own.is_some();
    options.credentials = Credentials {
        certificates: has_any.then_some(Certificates { authority, own }),
        username: store.username.clone(),
        password,
    };
    match before {
        Some(AnyStore::Redis(same)) if same.is_made_of(url, &options) => Ok(same.clone().into()),
        _ => RedisStore::new(url, options)
            .map(AnyStore::from)
            .map_err(|error: StoreError| error.to_string()),
    }
}

/// Reads a file that a config names. One that is larger than this, or endless, is an error.
#[doc(hidden)]
pub fn read_file(path: &Path, mebibytes: u16) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take((u64::from(mebibytes) << 20) + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() > usize::from(mebibytes) << 20 {
        let message = format!("larger than {mebibytes} MiB");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// [`read_file`] for text.
#[doc(hidden)]
pub fn read_text(path: &Path, mebibytes: u16) -> io::Result<String> {
    let text = String::from_utf8(read_file(path, mebibytes)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

/// The URL that a variable has, which must be what it could be in the file.
fn from_environment(variable: &str) -> Result<RedisUrl, String> {
    let wrong = |what: &str| format!("the environment variable {variable}{what}");
    let url = std::env::var(variable).map_err(|error| match error {
        VarError::NotPresent => wrong(" is not set"),
        VarError::NotUnicode(_) => wrong(" is not UTF-8"),
    })?;
    url.parse().map_err(|error| wrong(&format!(": {error}")))
}

#[cfg(test)]
mod tests {
    use tidegate::Cost;

    use super::*;

    fn config(max_keys: u32, sync_interval: &str) -> Config {
        let text = format!(
            "[stores.default]\nurl = \"memory:\"\nmax_keys = {max_keys}\n\n\
             [stores.shared]\nurl = \"redis://127.0.0.1:1\"\n\n\
             [[policies]]\nname = \"p\"\nlimit = \"5r/h\"\n\n\
             [[policies]]\nname = \"b\"\nlimit = \"5r/h\"\nmode = \"background\"\n\
             sync_interval = \"{sync_interval}\"\nstore = \"shared\"\n"
        );
        Config::parse(&text, "tidegate.toml").expect("a config")
    }

    #[tokio::test]
    async fn reload_changes_bounds_and_intervals_once_committed_and_keeps_every_count() {
        let folder = Path::new("");
        let before = config(1_000, "100ms");
        let before = Policies::from_config(&before, folder).expect("a config");
        let key = [("key", "a")];
        let mut receipt = None;
        for _ in 0..3 {
            let check = before.check("p", &key, Cost::ONE).await;
            receipt = check.expect("a policy").receipt();
        }
        let in_force = |limiter: &Policies| {
            let max_keys = match limiter.stores().next() {
                Some((_, AnyStore::Memory(store))) => store.bounds().0,
                other => panic!("{other:?}"),
            };
            let background = limiter.handle("b").expect("a policy").sync_interval();
            (max_keys, background.as_millis())
        };
        let changed = config(9_000, "900ms");
        for policy in &changed.policies {
            let mut refused = changed.clone();
            refused.policies.push(policy.clone());
            assert!(before.reconfigured(&refused, folder).is_err());
            assert!(before.changed(refused.policies).is_err());
            assert_eq!(in_force(&before), (1_000, 100));
        }
        let after = before.prepare(&changed, folder).expect("a config");
        assert_eq!(in_force(&before), (1_000, 100));
        after.commit(&changed);
        assert_eq!(in_force(&after), (9_000, 900));
        let receipt = receipt.expect("a charge");
        let [before, after] = [&before, &after].map(|it| it.handle("p").expect("a policy"));
        let refund = before.refund(&key, &receipt).await;
        refund.expect("a receipt");
        let look = after.peek(&key, Cost::ONE).await;
        assert_eq!(look.expect("a policy").remaining(), 3);
    }
}
