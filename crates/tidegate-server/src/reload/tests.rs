//! Files that change while they are looked at, on tokio's paused clock: the file changes
//! exactly when the test says so, however slow the machine is.

use tidegate_redis::AnyStore;
use tidegate_testkit::cases::check;
use tidegate_testkit::process::Folder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::*;
use crate::cli::Source;
use crate::envoy::rules::{Defaults, Domains, read_text};
use crate::resp::{Pass, Session};
use crate::settings::Listen;

const FILE: &str = "tidegate.toml";

/// A server's config in a file of its own, watched.
struct Watched {
    folder: Folder,
    settings: Settings,
    engine: Arc<Engine>,
}

impl Watched {
    async fn start(text: &str) -> Self {
        let folder = Folder::new();
        let source = Source {
            config: Some(folder.write(FILE, text)),
            store: None,
        };
        let settings = Settings::new(&source, Listen::default()).unwrap();
        let loaded = settings.load().unwrap();
        let started = Started {
            seen: loaded.seen.clone(),
            server: loaded.server.clone(),
            log: Control::of_nothing(),
        };
        let engine = Arc::new(Engine::new(loaded).unwrap());
        let hangup = signal(SignalKind::hangup()).unwrap();
        let watching = watch(Arc::clone(&engine), settings.clone(), started, hangup);
        tokio::spawn(watching);
        // Between two looks from now on.
        sleep(PERIOD / 2).await;
        Self {
            folder,
            settings,
            engine,
        }
    }

    fn write(&self, text: &str) {
        self.folder.write(FILE, text);
    }

    /// Writes a file, which is taken or refused, and says how many reloads succeeded and
    /// failed by then.
    async fn rewrite(&self, text: &str) -> (u64, u64) {
        self.write(text);
        sleep(3 * PERIOD).await;
        self.reloads()
    }

    /// The number of requests per year in force.
    fn limit(&self) -> u32 {
        let limit = self.engine.current().config.policies[0].levels()[0]
            .limit()
            .to_string();
        limit.split('/').next().unwrap().parse().unwrap()
    }

    fn metrics(&self) -> String {
        let text = self.engine.metrics.text(&self.engine.current().limiter);
        String::from_utf8(text).unwrap()
    }

    /// Reloads that succeeded, and that failed.
    fn reloads(&self) -> (u64, u64) {
        let text = self.metrics();
        let count = |result: &str| {
            let name = format!("tidegate_reload_total{{result=\"{result}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&name));
            value.unwrap().parse().unwrap()
        };
        (count("ok"), count("error"))
    }
}

fn limit(requests: u32) -> String {
    format!("[[policies]]\nname = \"default\"\nlimit = \"{requests}/366d\"\n")
}

#[tokio::test(start_paused = true)]
async fn file_that_is_being_written_is_not_taken() {
    let watched = Watched::start(&limit(5)).await;
    // Empty at one look, and gone at the next.
    watched.write("");
    sleep(PERIOD).await;
    std::fs::remove_file(watched.folder.path(FILE)).unwrap();
    sleep(3 * PERIOD).await;
    assert_eq!((watched.limit(), watched.reloads()), (5, (0, 0)));
    // It is longer at each look.
    let whole = limit(6);
    for end in 1..whole.len() {
        watched.write(&whole[..end]);
        sleep(PERIOD).await;
    }
    assert_eq!((watched.limit(), watched.reloads()), (5, (0, 0)));
    watched.write(&whole);
    sleep(PERIOD).await;
    assert_eq!(watched.limit(), 5, "seen once");
    sleep(PERIOD).await;
    assert_eq!((watched.limit(), watched.reloads()), (6, (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn s18_refused_reload_changes_no_bounds_and_no_metrics() {
    let with = |max_keys: u32, rest: &str| {
        format!(
            "[stores.default]\nmax_keys = {max_keys}\n{}{rest}",
            limit(5)
        )
    };
    let watched = Watched::start(&with(1_000, "")).await;
    let max_keys = || match watched.engine.current().limiter.stores().next() {
        Some((_, AnyStore::Memory(store))) => store.bounds().0,
        other => panic!("{other:?}"),
    };
    let other = "[[policies]]\nname = \"other\"\nlimit = \"1r/s\"\n";
    let secret = "[server]\nadmin_token = \"env:TIDEGATE_TEST_NOT_SET\"\n";
    let certificate = "[server]\ntls_cert = \"no.crt\"\ntls_key = \"no.key\"\n";
    for (rest, max, counts) in [
        (secret, 1_000, (0, 1)),
        (certificate, 1_000, (0, 2)),
        ("", 10, (1, 2)),
    ] {
        let reloads = watched.rewrite(&with(10, &format!("{other}{rest}"))).await;
        assert_eq!((max_keys(), reloads), (max, counts));
        let is_there = watched.metrics().contains("policy=\"other\"");
        assert_eq!(is_there, max == 10);
    }
}

/// Both wait for the store to verify a script, so both are under way at once.
#[tokio::test(start_paused = true)]
async fn s10_reload_and_limits_of_a_control_plane_do_not_undo_each_other() {
    // Nobody accepts, so the store takes all of its deadline.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Folder::new();
    let script = folder.write("s.lua", "return {\"allow\", {}}");
    let text = format!(
        "[stores.default]\nurl = \"redis://{}\"\n\
         [[policies]]\nname = \"s\"\nalgorithm = \"script\"\nscript = {script:?}\n",
        silent.local_addr().unwrap(),
    );
    let load = |text: String| Settings::written(text).load().unwrap();
    let engine = Arc::new(Engine::new(load(text.clone())).unwrap());
    let yaml =
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: hour, requests_per_unit: 1}\n";
    let draft = read_text(yaml, "d.yaml").unwrap();
    let domains = Domains::build(vec![draft], &Defaults::default()).unwrap();
    let (acknowledged, reloaded) = tokio::join!(
        engine.change_rules(domains),
        engine.change(load(text + &limit(5)))
    );
    acknowledged.unwrap();
    reloaded.unwrap();
    let current = engine.current();
    let rules = current.dropin().map(|it| it.domains.rules().len());
    assert_eq!((rules, current.config.policies.len()), (Some(1), 2));
}

#[tokio::test(start_paused = true)]
async fn v3_reload_that_would_remove_every_policy_needs_policies_to_be_empty() {
    let watched = Watched::start(&limit(5)).await;
    assert_eq!(watched.rewrite("[server]\n").await, (0, 1));
    assert_eq!(watched.limit(), 5);
    let error = watched.engine.change(watched.settings.load().unwrap());
    assert_eq!(
        error.await.err().map(|error| error.to_string()).unwrap(),
        "the file has no policies, and 1 in force would be removed: \
         expected [[policies]], or policies = [] to remove them"
    );
    assert_eq!(watched.rewrite("policies = []\n[server]\n").await, (1, 1));
    assert_eq!(watched.engine.current().config.policies, []);
    // Nothing is left to remove, so the default policy comes back.
    assert_eq!(watched.rewrite("[server]\n").await, (2, 1));
    assert_eq!(watched.engine.current().config.policies.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn s7_rotated_resp_token_is_read_again_and_the_old_one_ends() {
    let folder = Folder::new();
    let token = folder.write("token", "old");
    let text = format!(
        "[server]\nresp = \"127.0.0.1:0\"\nresp_token = \"file:{}\"\n{}",
        token.display(),
        limit(5)
    );
    let watched = Watched::start(&text).await;
    let mut client = Pass::new(Arc::clone(&watched.engine), Session::new(1));
    let ask = async |client: &mut Pass, line: &str| {
        client.run(line.as_bytes(), || ()).await;
        let reply = String::from_utf8(client.replies().to_vec()).unwrap();
        client.forget(reply.len(), 0);
        reply.split(' ').next().unwrap().trim_end().to_owned()
    };
    assert_eq!(ask(&mut client, "AUTH old\r\n").await, "+OK");
    assert_eq!(ask(&mut client, "PING\r\n").await, "+PONG");
    folder.write("token", "new");
    sleep(3 * PERIOD).await;
    assert_eq!(ask(&mut client, "PING\r\n").await, "-NOAUTH");
    assert_eq!(ask(&mut client, "AUTH old\r\n").await, "-WRONGPASS");
    assert_eq!(ask(&mut client, "AUTH new\r\n").await, "+OK");
    assert_eq!(ask(&mut client, "PING\r\n").await, "+PONG");
}

#[tokio::test(start_paused = true)]
async fn v7_files_that_are_too_large_or_endless_are_errors() {
    let watched = Watched::start(&limit(5)).await;
    watched.write(&format!("{}#{}", limit(6), "x".repeat(1 << 20)));
    sleep(10 * PERIOD).await;
    assert_eq!((watched.limit(), watched.reloads()), (5, (0, 1)));
    let source = Source {
        config: Some("/dev/zero".into()),
        store: None,
    };
    let settings = Settings::new(&source, Listen::default()).unwrap();
    let error = settings.load().unwrap_err().to_string();
    let expected = "/dev/zero: larger than 1 MiB: expected a config file";
    assert!(error.starts_with(expected), "{error}");
    check(include_str!("large.txt"), 5, |text| {
        let loaded = Settings::written(text.to_owned()).load().unwrap();
        Engine::new(loaded).map_or_else(|error| error.to_string(), |_| "no error".into())
    });
}
