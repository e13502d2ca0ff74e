//! Requests, as data: `requests.txt` is in the language of [`tidegate_testkit::nginx`].
//!
//! All cases are in one nginx, each in a server of its own. A case whose config says `MODE`
//! runs in each mode. In a config, lines that begin with `tidegate_zone`, `tidegate_store` or
//! `server` are in `http`, and `file` makes a file below the root. More steps are these:
//!
//! | step | its answer |
//! | --- | --- |
//! | `keys *name` | the keys in Redis that are like this |
//! | `bodies 5` | how many bodies have come to the server behind nginx, all of this length |
//! | `h2load 8` | the statuses of this many streams of HTTP/2 on one connection |

use std::process::Command;

use tidegate_testkit::nginx::{Case, Nginx, body_of, cases};
use tidegate_testkit::process::{free_port, until};
use tidegate_testkit::redis::Server;

use crate::nginx::{command, start, store};

const FILE: &str = include_str!("requests.txt");

/// What logs the bodies that it gets. Only a server that passes them on knows them.
const BEHIND: &str = "
    log_format body escape=none $request_body;
    server {
        listen unix:FOLDER/behind;
        client_max_body_size 2m; client_body_buffer_size 2m; access_log FOLDER/bodies body;
        location / { proxy_pass http://unix:FOLDER/nothing; }
    }
    server { listen unix:FOLDER/nothing; location / { return 200 received; } }";

/// Starts an nginx with these cases. Each listens on a port of its own.
fn start_cases(redis: &Server, cases: &[&Case<'_>], ports: &[u16], mode: &str) -> Nginx {
    let (mut http, mut servers) = (
        store(redis, "10s") + BEHIND + "\naccess_log off;\n",
        String::new(),
    );
    for (case, port) in cases.iter().zip(ports) {
        let lines = case.config.iter().filter(|line| !line.starts_with("file "));
        let is_http = |line: &&&str| {
            let starts = ["tidegate_zone ", "tidegate_store ", "server "];
            starts.iter().any(|start| line.starts_with(start))
        };
        let (shared, own): (Vec<&str>, Vec<&str>) = lines.partition(is_http);
        let own = own.join("\n");
        let listen = match own.contains("listen ") {
            true => "",
            false => "listen CASE;",
        };
        let case = format!("server {{ {listen} root FOLDER/html;\n{own}\n}}\n");
        servers += &case.replace("CASE", &format!("127.0.0.1:{port}"));
        http += &(shared.join("\n") + "\n");
    }
    let own = "server { listen 127.0.0.1:PORT; }";
    let http = http.replace("MODE", &format!("mode={mode}"));
    let http = http.replace("DEAD", &format!("127.0.0.1:{}", free_port()));
    let nginx = start(1, &format!("{http}{servers}{own}"));
    for line in cases.iter().flat_map(|case| &case.config) {
        if let Some((name, text)) = line.strip_prefix("file ").and_then(|it| it.split_once(' ')) {
            nginx
                .folder()
                .write(&format!("html/{name}"), format!("{text}\n"));
        }
    }
    nginx
}

fn keys(redis: &Server, pattern: &str) -> String {
    let mut keys: Vec<String> = command(redis, &format!("KEYS {pattern}"));
    keys.sort_unstable();
    keys.join(" ")
}

/// nginx logs a request when it has been answered.
fn bodies(nginx: &Nginx, length: usize) -> String {
    let body = String::from_utf8(body_of(length)).unwrap();
    let log = until("a line", || {
        let log = nginx.read("bodies");
        log.ends_with('\n').then_some(log)
    });
    let intact = log.lines().all(|line| line == body);
    assert!(intact, "other bodies have come than were sent");
    log.lines().count().to_string()
}

fn h2load(port: u16, streams: &str) -> String {
    let mut h2load = Command::new("h2load");
    h2load.args(["-n", streams, "-c", "1", "-m", streams]);
    let output = h2load.arg(format!("http://127.0.0.1:{port}/")).output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let line = output
        .lines()
        .find_map(|it| it.strip_prefix("status codes: "));
    line.unwrap().to_owned()
}

fn run(mode: &str) {
    let redis = Server::start();
    let all = cases(FILE);
    let has_mode = |case: &&Case<'_>| case.config.iter().any(|line| line.contains("MODE"));
    let cases: Vec<&Case<'_>> = all
        .iter()
        .filter(|case| mode == "local" || has_mode(case))
        .collect();
    assert!(cases.len() >= 8, "is requests.txt cut off?");
    let ports: Vec<u16> = cases.iter().map(|_| free_port()).collect();
    let nginx = start_cases(&redis, &cases, &ports, mode);
    let wrong = cases.iter().zip(&ports).map(|(case, port)| {
        case.run(|step| match step.split_once(' ') {
            Some(("keys", pattern)) => keys(&redis, pattern),
            Some(("bodies", length)) => bodies(&nginx, length.parse().unwrap()),
            Some(("h2load", streams)) => h2load(*port, streams),
            _ => nginx.answer(*port, step),
        })
    });
    let wrong: String = wrong.collect();
    assert!(wrong.is_empty(), "{mode}, otherwise than written:\n{wrong}");
    assert_eq!(nginx.count("…[alert]…"), 0, "{}", nginx.read("error.log"));
}

#[test]
fn local() {
    run("local");
}

#[test]
fn exact() {
    run("exact");
}

#[test]
fn lease() {
    run("lease");
}

#[test]
fn background() {
    run("background");
}

mod timing {
    use std::time::{Duration, Instant};

    use tidegate_testkit::http::{Connection, get, request};
    use tidegate_testkit::process::until;
    use tidegate_testkit::redis::Server;

    use crate::nginx::{serving, start, store};

    /// Clients that go away while Redis does not answer take nothing with them.
    #[test]
    fn client_that_goes_away_while_it_waits_is_forgotten() {
        let redis = Server::start();
        let zones = "tidegate_zone z key=$arg_k rate=5r/d mode=exact; log_format t $status; access_log FOLDER/t.log t;";
        let zones = format!("{} {zones}", store(&redis, "30s"));
        let nginx = start(1, &serving(&zones, "location / { tidegate z; }"));
        assert_eq!(get(nginx.port(), "/?k=a").status, 200);
        let sockets = || {
            let id = nginx.worker_ids()[0];
            let entries = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap();
            entries.count()
        };
        let before = sockets();
        redis.signal("STOP");
        let start = Instant::now();
        for _ in 0..50 {
            let mut connection = Connection::tcp(&format!("127.0.0.1:{}", nginx.port()));
            connection.send(&request("GET", "/?k=b", &[], &[]));
        }
        // Logged as closed by the client, long before Redis answers.
        until("50 lines", || {
            (nginx.read("t.log").matches("499").count() == 50).then_some(())
        });
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(25), "only after the deadline");
        redis.signal("CONT");
        assert_eq!(get(nginx.port(), "/?k=c").status, 200);
        until("closed sockets", || (sockets() <= before).then_some(()));
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }
}
