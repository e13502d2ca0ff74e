//! One limit for many keys and any number of machines: the methods of
//! [`tidegate::Limiter`], with the counters in Redis.

use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{
    Cost, Decision, Key, Limit, Mode, OnError, Policy, PolicyBuilder, Receipt, Turn, Wait,
    WaitError, Waiting, Which,
};
use tidegate_config::RedisUrl;
use tokio::time::{Instant, sleep};

use crate::config::SetupError;
use crate::error::{ErrorKind, StoreError};
use crate::lock::{read, write};
use crate::options::RedisOptions;
use crate::policy::{PolicyLimiter, TryCheckError};
use crate::store::RedisStore;

/// A limit applied to each of many keys, shared by every process that uses the same Redis
/// and the same name.
///
/// It has the methods of [`tidegate::Limiter`], as `async` ones. Going from one machine to
/// many changes the line that makes the limiter:
///
/// ```no_run
/// use tidegate::Limit;
/// use tidegate_redis::Limiter;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limit = Limit::per_second(50).burst(100);
/// // let limiter = tidegate::Limiter::in_memory(limit);
/// let limiter = Limiter::connect("redis://127.0.0.1:6379", "api", limit)?;
///
/// let decision = limiter.check("user:42").await;
/// if !decision.allowed() {
///     println!("try again in {:?}", decision.retry_after());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Keys
///
/// Keys are text, bytes, numbers, addresses or tuples of these ([`Key`]), of up to 16
/// values. A check of one value counts together with `tidegate serve` and
/// [`PolicyLimiter`] for a policy that has the limiter's name and `key = "{key}"`. A tuple
/// counts together with a template of as many attributes, such as `"{tenant}:{user}"`. A
/// tuple never counts together with a single value.
///
/// # When Redis is down
///
/// Making a limiter does not connect, so a program starts while Redis is down. A check
/// takes at most the store's timeout, 50 ms by default. If Redis has not answered by then,
/// [`on_error`](LimiterBuilder::on_error) decides, and
/// [`Decision::source`] says so. By default, a limiter in this process decides.
///
/// Clones are handles to the same connections and the same limit. The methods need a
/// tokio runtime.
#[derive(Debug, Clone)]
pub struct Limiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The policy, without its key and its limit.
    policy: PolicyBuilder,
    store: RedisStore,
    current: RwLock<Arc<Current>>,
}

/// The current limit, for all clones of a limiter.
#[derive(Debug)]
struct Current {
    limit: Limit,
    /// The policies for keys of no value, of one and so on, made for the first of them.
    policies: Vec<OnceLock<PolicyLimiter>>,
}

/// Builds a [`Limiter`] with your own settings.
///
/// ```no_run
/// use std::time::Duration;
/// use tidegate::{Limit, OnError};
/// use tidegate_redis::{Limiter, RedisOptions, RedisStore};
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let options = RedisOptions::default().prefix("shop").timeout(Duration::from_millis(20));
/// let store = RedisStore::new("redis://127.0.0.1:6379", options)?;
/// let login = Limiter::builder("login", Limit::per_minute(5))
///     .on_error(OnError::Deny)
///     .over(store.clone())?;
/// // Limiters over one store share its connections.
/// let search = Limiter::builder("search", Limit::per_second(10)).over(store)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `connect` or `over`"]
pub struct LimiterBuilder {
    name: String,
    limit: Limit,
    policy: PolicyBuilder,
}

impl Limiter {
    /// A limiter with this name over the Redis at this URL. [`RedisStore::new`] lists the
    /// kinds of URLs.
    ///
    /// This does not connect, so it succeeds while Redis is down. It fails if the URL or the
    /// name is invalid: a name has 1 to 64 of the characters `A-Z a-z 0-9 _ -`.
    pub fn connect(url: &str, name: impl Into<String>, limit: Limit) -> Result<Self, SetupError> {
        Self::builder(name, limit).connect(url)
    }

    /// A limiter with this name over an existing store. Limiters over clones
    /// of one store share its connections.
    pub fn over(
        store: RedisStore,
        name: impl Into<String>,
        limit: Limit,
    ) -> Result<Self, SetupError> {
        Self::builder(name, limit).over(store)
    }

    /// Builds a limiter with your own settings.
    pub fn builder(name: impl Into<String>, limit: Limit) -> LimiterBuilder {
        let name = name.into();
        LimiterBuilder {
            policy: Policy::builder(name.clone()),
            name,
            limit,
        }
    }

    /// Decides whether one request of this key may proceed, and charges it if so.
    pub async fn check(&self, key: impl Key) -> Decision {
        self.check_cost(key, Cost::ONE).await
    }

    /// Decides whether a request of this cost may proceed, and charges all of it or nothing.
    pub async fn check_cost(&self, key: impl Key, cost: Cost) -> Decision {
        self.check_key(&key, cost).await
    }

    /// [`check_cost`](Self::check_cost), but if the store does not answer, this returns the
    /// error instead of applying `on_error`.
    pub async fn try_check(&self, key: impl Key, cost: Cost) -> Result<Decision, StoreError> {
        let (limiter, values) = self.of(&key);
        let decision = limiter.try_check(&values, cost).await;
        Ok(decision.map_err(of_the_store)?.into_decision())
    }

    /// Checks each of these keys separately, at a cost of 1. The checks are sent to Redis
    /// together, so many keys take about as long as one.
    ///
    /// ```no_run
    /// # async fn example(limiter: tidegate_redis::Limiter) {
    /// for (key, decision) in ["a", "b"].iter().zip(limiter.check_many(&["a", "b"]).await) {
    ///     println!("{key}: {}", decision.allowed());
    /// }
    /// # }
    /// ```
    pub async fn check_many(&self, keys: &[impl AsRef<[u8]>]) -> Vec<Decision> {
        join_all(keys.iter().map(|key| self.check(key.as_ref()))).await
    }

    /// Returns the decision that [`check_cost`](Self::check_cost) would make, and charges
    /// nothing. It always asks the store, and fails if the store does not answer.
    pub async fn peek(&self, key: impl Key, cost: Cost) -> Result<Decision, StoreError> {
        let (limiter, values) = self.of(&key);
        let decision = limiter.peek(&values, cost).await;
        Ok(decision.map_err(of_the_store)?.into_decision())
    }

    /// Gives back what a check of this key charged, as far as it still counts, and never
    /// more than if the request had not been made. A receipt can be refunded once: the
    /// second time, this returns false. It is void after a reset or a change of the limit.
    ///
    /// ```no_run
    /// # async fn example(limiter: tidegate_redis::Limiter)
    /// #     -> Result<(), tidegate_redis::StoreError> {
    /// let decision = limiter.check("a").await;
    /// // The request should not count.
    /// if let Some(receipt) = decision.receipt() {
    ///     limiter.refund("a", &receipt).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refund(&self, key: impl Key, receipt: &Receipt) -> Result<bool, StoreError> {
        let (limiter, values) = self.of(&key);
        limiter.refund(&values, receipt).await.map_err(of_the_store)
    }

    /// Forgets a key, for every process. Returns whether it existed.
    pub async fn reset(&self, key: impl Key) -> Result<bool, StoreError> {
        let (limiter, values) = self.of(&key);
        let forgotten = limiter.reset(&values, Which::Only).await;
        Ok(forgotten.map_err(of_the_store)? > 0)
    }

    /// Changes the limit of this handle and all its clones. Keys in use keep their usage:
    /// after lowering 5 to 3 with 5 used, requests are refused until usage drops below 3.
    /// With another algorithm, counting starts from zero.
    ///
    /// Other processes keep their own limit, over the same counters. Change it there as
    /// well.
    pub fn set_limit(&self, limit: Limit) -> Result<(), SetupError> {
        // Whatever is wrong is found now, not by the first check.
        self.0.policy(1, limit)?;
        let mut current = write(&self.0.current);
        let policies = current.policies.iter().enumerate();
        let policies = policies.map(|(values, limiter)| match limiter.get() {
            Some(limiter) => {
                let policy = self.0.policy(values, limit)?;
                Ok(OnceLock::from(limiter.changed(policy)?))
            }
            None => Ok(OnceLock::new()),
        });
        let policies = policies.collect::<Result<_, SetupError>>()?;
        *current = Arc::new(Current { limit, policies });
        Ok(())
    }

    /// The current limit.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.0.current().limit
    }

    /// The store that keeps the counters, for its [statistics](RedisStore::stats) or for
    /// another limiter [over](Self::over) the same connections.
    #[must_use]
    pub fn store(&self) -> &RedisStore {
        &self.0.store
    }

    /// Waits until a request of this key may proceed, and charges it once. Fails
    /// immediately, and charges nothing, if that would take longer than the deadline or
    /// never happen.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tidegate::{Cost, Wait, WaitError};
    ///
    /// # async fn example(limiter: tidegate_redis::Limiter) -> Result<(), WaitError> {
    /// let deadline = Duration::from_secs(1);
    /// limiter.until_ready("a", deadline).await?;
    /// limiter.until_ready("a", Wait::within(deadline).cost(Cost::of(2))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn until_ready(
        &self,
        key: impl Key,
        wait: impl Into<Wait>,
    ) -> Result<Decision, WaitError> {
        let (wait, start) = (wait.into(), Instant::now());
        let cost = Waiting::new(wait, 0).cost();
        loop {
            let decision = self.check_key(&key, cost).await;
            // The clock of Redis is not this machine's, and either may have decided: the
            // wait began so long ago on the one that did.
            let passed_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
            let began_us = decision.decided_at_us().saturating_sub(passed_us);
            match Waiting::new(wait, began_us).next(decision)? {
                Turn::Go(decision) => return Ok(decision),
                Turn::Pause(pause) => sleep(pause).await,
            }
        }
    }

    /// Sends everything that was admitted in [`Mode::Background`] to the store. Returns
    /// whether that was done within this time. Call it before the program ends, because
    /// unsent counts are lost. In [`Mode::Exact`], there is nothing to send.
    pub async fn flush(&self, within: Duration) -> bool {
        let current = self.0.current();
        let limiters = current.policies.iter().filter_map(OnceLock::get);
        let flushed = join_all(limiters.map(|limiter| limiter.flush(within))).await;
        flushed.into_iter().all(|is_flushed| is_flushed)
    }

    async fn check_key(&self, key: &impl Key, cost: Cost) -> Decision {
        let (limiter, values) = self.of(key);
        let decision = limiter.check(&values, cost).await;
        let decision = decision.expect("the key has all its values");
        decision.into_decision()
    }

    /// The policy that decides keys of this length, and this key's attributes for it.
    fn of(&self, key: &impl Key) -> (PolicyLimiter, Values) {
        let values: Values = key.with_values(|values| {
            assert!(values.len() <= NAMES.len(), "a key has at most 16 values");
            let values = NAMES.iter().zip(values);
            values
                .map(|(name, value)| (*name, value.to_vec()))
                .collect()
        });
        let current = self.0.current();
        let limiter = current.policies[values.len()].get_or_init(|| {
            let policy = self.0.policy(values.len(), current.limit);
            let store = self.0.store.clone();
            let limiter = policy.and_then(|policy| PolicyLimiter::over(store, policy));
            limiter.expect("only the number of values is new")
        });
        (limiter.clone(), values)
    }
}

/// The values of a key, as attributes.
type Values = Vec<(&'static str, Vec<u8>)>;

/// The attributes of keys, in order. `{key}` is the key of a policy that names none.
const NAMES: [&str; 16] = [
    "key", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
];

impl Inner {
    fn current(&self) -> Arc<Current> {
        Arc::clone(&read(&self.current))
    }

    fn policy(&self, values: usize, limit: Limit) -> Result<Policy, SetupError> {
        let names: Vec<String> = NAMES[..values]
            .iter()
            .map(|it| format!("{{{it}}}"))
            .collect();
        let policy = self.policy.clone().key(names.join(":")).limit(limit);
        Ok(policy.build()?)
    }
}

/// A limiter asks only what its policy can answer, so what failed is the store.
fn of_the_store(error: TryCheckError) -> StoreError {
    match error {
        TryCheckError::Store(error) => error,
        TryCheckError::Check(error) => StoreError::new(ErrorKind::Other, error.to_string()),
    }
}

impl LimiterBuilder {
    /// What to answer when Redis does not: [`OnError::Local`] by default.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.policy = self.policy.on_error(on_error);
        self
    }

    /// This process's share of the limit under [`OnError::Local`]: all of it by default.
    pub fn local_share(mut self, share: f64) -> Self {
        self.policy = self.policy.local_share(share);
        self
    }

    /// When to ask Redis: for every check by default, or in the
    /// [background](Mode::Background).
    pub fn mode(mut self, mode: Mode) -> Self {
        self.policy = self.policy.mode(mode);
        self
    }

    /// How often [`Mode::Background`] sends its counts to Redis: from 1 ms to 60 s, 50 ms by
    /// default.
    pub fn sync_interval(mut self, interval: Duration) -> Self {
        self.policy = self.policy.sync_interval(interval);
        self
    }

    /// The longest time that a refusal is remembered: 1 s by default. Until then, or until
    /// the key has room if that is sooner, Redis is not asked again. Zero turns it off.
    pub fn refusal_memory(mut self, duration: Duration) -> Self {
        self.policy = self.policy.refusal_memory(duration);
        self
    }

    /// Builds the limiter over the Redis at this URL. See [`Limiter::connect`].
    pub fn connect(self, url: &str) -> Result<Limiter, SetupError> {
        let unusable = |problem| SetupError::Store {
            store: self.name.clone(),
            problem,
        };
        // The config file has the same messages for a wrong URL.
        let url: RedisUrl = url.parse().map_err(unusable)?;
        let options = RedisOptions::default().name(&self.name);
        let store = RedisStore::new(url.as_str(), options);
        let store = store.map_err(|error| unusable(error.to_string()))?;
        self.over(store)
    }

    /// Builds the limiter over an existing store. See [`Limiter::over`].
    pub fn over(self, store: RedisStore) -> Result<Limiter, SetupError> {
        let inner = Inner {
            policy: self.policy,
            store,
            current: RwLock::new(Arc::new(Current {
                limit: self.limit,
                policies: (0..=NAMES.len()).map(|_| OnceLock::new()).collect(),
            })),
        };
        // Whatever is wrong is found now, not by the first check.
        inner.policy(1, self.limit)?;
        Ok(Limiter(Arc::new(inner)))
    }
}
