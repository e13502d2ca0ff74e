//! Trials in Redis. What they decide is in `requests/trial.txt`.

use tidegate::Cost;
use tidegate_server::cli::Source;
use tidegate_server::engine::{Call, Engine, Kind};
use tidegate_server::settings::{Listen, Settings};

use crate::process::Folder;
use crate::redis_server::Server;

/// An engine over this config, in a folder of its own.
fn engine(config: &str) -> Engine {
    let folder = Folder::new();
    let path = folder.write("tidegate.toml", config);
    let source = Source {
        config: Some(path),
        store: None,
    };
    let settings = Settings::new(&source, Listen::default()).expect("no store");
    Engine::new(settings.load().expect("a config")).expect("policies")
}

/// Scripts that Redis has run.
fn scripts_run(redis: &Server) -> u64 {
    let mut info = redis::cmd("INFO");
    let info = info.arg("commandstats").query(&mut redis.connect());
    let info: String = info.expect("a Redis that runs");
    let lines = info.lines().filter_map(|line| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_script = matches!(name, "eval" | "evalsha");
        stats
            .split(',')
            .next()
            .filter(|_| is_script)?
            .parse::<u64>()
            .ok()
    });
    lines.sum()
}

/// A check and its trial are on their way at once, and Redis runs one script for both.
/// There is one thread here, so that what is sent together does not depend on luck.
#[tokio::test]
async fn trial_in_redis_travels_with_the_check() {
    let redis = Server::start();
    let store = format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"10s\"\n",
        redis.url()
    );
    let live = "[[policies]]\nname = \"p\"\nkey = \"{ip}\"\nlimit = \"100/1h\"\n";
    let trial = "[[policies]]\nname = \"next\"\ntrial_of = \"p\"\nkey = \"{ip}\"\n\
                 limit = \"50/1h\"\n";
    for (run, trial) in ["", trial].into_iter().enumerate() {
        let engine = engine(&format!("{store}{live}{trial}"));
        let current = engine.current();
        let ask = async |ip: &str| {
            let ip = [("ip", ip)];
            let call = Call::new(current.entry("p").expect("a policy"), &ip, Cost::ONE);
            engine.ask_one(&call).await.expect("a decision").remaining()
        };
        // Connects to Redis, and gives it the scripts.
        for number in 0..8 {
            ask(&format!("{run} first {number}")).await;
        }
        let before = scripts_run(&redis);
        for number in 0..50 {
            let left = ask(&format!("{run} {}", number % 5)).await;
            assert_eq!(left, 99 - number / 5, "the numbers of the policy in force");
        }
        assert_eq!(scripts_run(&redis) - before, 50, "{trial:?}");
        if !trial.is_empty() {
            let (entry, ip) = (current.entry("next").expect("a policy"), [("ip", "1 0")]);
            let look = Call {
                kind: Kind::Peek,
                ..Call::new(entry, &ip, Cost::ONE)
            };
            let left = engine.ask_one(&look).await.expect("numbers");
            assert_eq!(left.remaining(), 40);
        }
    }
}
