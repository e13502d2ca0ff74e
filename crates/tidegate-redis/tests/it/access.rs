//! Who may come in, and how: the user of docs/redis.md, passwords, TLS, other addresses.

use std::io::Write;
use std::slice;
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit};
use tidegate_redis::{ErrorKind, Password, RedisOptions, RedisStore};

use crate::certificates::Certificates;
use crate::server::Server;
use crate::support::{Named, YEAR, check, limiter_over, patient, policy};
use crate::user::{everything, kind, rules, set_user};
use tidegate_testkit::cluster::run;

fn url(server: &Server, user: &str) -> String {
    format!("redis://{user}@127.0.0.1:{}/", server.port())
}

/// All that a limiter can be asked, as a user with these rules.
async fn as_user(
    server: &Server,
    rules: &[&str],
    database: &str,
    options: RedisOptions,
) -> Result<(), ErrorKind> {
    set_user(server, rules);
    let url = url(server, "tidegate:a-long-password") + database;
    everything(&url, options, slice::from_ref(server)).await
}

#[tokio::test]
async fn f1_the_manuals_user_may_do_all_that_is_needed_also_when_scripts_are_lost() {
    for server in Server::start_each() {
        let all = rules();
        assert_eq!(as_user(&server, &all, "", patient()).await, Ok(()));
        for rule in all.iter().filter(|rule| rule.starts_with('+')) {
            let rest: Vec<&str> = all.iter().copied().filter(|it| it != rule).collect();
            let run = as_user(&server, &rest, "", patient()).await;
            assert_eq!(run, Err(ErrorKind::NoPermission), "without {rule}");
        }
        let on_other_keys = as_user(&server, &all, "", patient().prefix("other")).await;
        assert_eq!(on_other_keys, Err(ErrorKind::NoPermission));
        // Another database is tried until the deadline.
        let quick = RedisOptions::default().timeout(Duration::from_millis(500));
        assert!(as_user(&server, &all, "3", quick).await.is_err());
        let with_select = [&all[..], &["+select"]].concat();
        assert_eq!(as_user(&server, &with_select, "3", patient()).await, Ok(()));
    }
}

/// One check over this URL: what remains, or the kind of the error.
async fn ask(url: &str, options: RedisOptions) -> Result<u32, ErrorKind> {
    let store = RedisStore::new(url, options).map_err(|error| error.kind())?;
    remaining(&store).await
}

async fn remaining(store: &RedisStore) -> Result<u32, ErrorKind> {
    let limiter = limiter_over(store.clone(), [policy("p", Limit::per(50, YEAR))]);
    let asked = limiter.of("p").try_check(&[("key", "k")], Cost::ONE).await;
    asked.map(|it| it.remaining()).map_err(|error| {
        assert!(!error.to_string().contains("wrong-one"), "{error}");
        kind(&error)
    })
}

#[tokio::test]
async fn a_password_is_asked_for_and_told_apart_from_a_wrong_one() {
    let server = Server::start_with(&["--requirepass", "s e/c:r@t"]);
    for (user, said) in [
        (":s%20e%2Fc%3Ar%40t", Ok(49)),
        ("default:s%20e%2Fc%3Ar%40t", Ok(48)),
        (":wrong-one", Err(ErrorKind::Auth)),
        ("default:wrong-one", Err(ErrorKind::Auth)),
        ("nobody:wrong-one", Err(ErrorKind::Auth)),
        ("", Err(ErrorKind::Auth)),
    ] {
        assert_eq!(ask(&url(&server, user), patient()).await, said, "{user}");
    }
}

#[tokio::test]
async fn tls_with_an_authority_and_certificates_of_our_own() {
    let certificates = Certificates::make();
    let strangers = Certificates::make();
    let arguments = format!(
        "--port 0 --tls-port {{port}} --tls-cert-file {} --tls-key-file {} \
         --tls-ca-cert-file {} --tls-auth-clients yes --requirepass secret",
        certificates.path("server.crt"),
        certificates.path("server.key"),
        certificates.path("authority.crt"),
    );
    let server = Server::start_with(&arguments.split(' ').collect::<Vec<_>>());
    let quick = || RedisOptions::default().timeout(Duration::from_millis(500));
    let own = |of: &Certificates| Some((of.read("client.crt"), of.read("client.key")));
    let authority = |of: &Certificates| Some(of.read("authority.crt"));
    let ours = || patient().certificates(authority(&certificates), own(&certificates));
    let rediss = format!("rediss://:secret@127.0.0.1:{}/", server.port());
    assert_eq!(ask(&rediss, ours()).await, Ok(49));
    let named = format!("rediss://default:secret@localhost:{}/2", server.port());
    assert_eq!(ask(&named, ours()).await, Ok(49));

    // A wrong password, then what an impostor or a stranger would meet.
    let wrong = rediss.replace("secret", "wrong");
    assert_eq!(ask(&wrong, ours()).await, Err(ErrorKind::Auth));
    for (who, authority, own) in [
        ("an impostor", authority(&strangers), own(&certificates)),
        ("public authorities only", None, None),
        ("no certificate", authority(&certificates), None),
        ("a stranger", authority(&certificates), own(&strangers)),
    ] {
        let asked = ask(&rediss, quick().certificates(authority, own)).await;
        let is_refused = matches!(asked, Err(ErrorKind::Connect | ErrorKind::Timeout));
        assert!(is_refused, "{who}: {asked:?}");
    }
    // In the clear, the server does not answer.
    let clear = rediss.replace("rediss:", "redis:");
    assert!(ask(&clear, quick()).await.is_err());
}

#[tokio::test]
async fn unix_sockets_and_ipv6() {
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    if !has_ipv6 {
        // Not `eprintln`, whose output is not shown: this should not go unnoticed.
        let not_tested = b"\n*** NOT TESTED OVER IPv6: this machine has no [::1] ***\n";
        std::io::stderr().write_all(not_tested).unwrap();
    }
    let more: &[&str] = if has_ipv6 { &["::1"] } else { &[] };
    let arguments = ["--unixsocket", "redis.sock", "--bind", "127.0.0.1"];
    let server = Server::start_with(&[&arguments, more].concat());
    let folder = server.folder().display();
    let socket = format!("redis+unix://{folder}/redis.sock");
    assert_eq!(ask(&socket, patient()).await, Ok(49));
    if has_ipv6 {
        let url = format!("redis://[::1]:{}/", server.port());
        assert_eq!(ask(&url, patient()).await, Ok(48));
    }
}

/// Changes the password, or ends all connections but this one, on a server whose password
/// this is.
fn command(server: &Server, password: &str, command: &str) {
    let client = redis::Client::open(url(server, &format!(":{password}"))).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    run::<redis::Value>(&mut connection, command);
}

const DISCONNECT: &str = "CLIENT KILL TYPE normal SKIPME yes";

#[tokio::test]
async fn password_file_is_read_for_each_connection() {
    let server = Server::start_with(&["--requirepass", "first"]);
    let file = server.folder().join("password");
    std::fs::write(&file, "first\n").expect("a file");
    let password = Password::File(file.clone());
    let options = patient().username("default").password(password);
    let store = RedisStore::new(&server.url(), options).expect("a store");
    assert_eq!(remaining(&store).await, Ok(49));
    // The password changes on the server first, and connections go on.
    command(&server, "first", "CONFIG SET requirepass second");
    assert_eq!(remaining(&store).await, Ok(48));
    // A new connection finds the old password, which is refused, then the new one.
    command(&server, "second", DISCONNECT);
    let mut asked = remaining(&store).await;
    while asked == Err(ErrorKind::OutcomeUnknown) {
        asked = remaining(&store).await;
    }
    assert_eq!(asked, Err(ErrorKind::Auth));
    std::fs::write(&file, "second").expect("a file");
    let deadline = Instant::now() + Duration::from_secs(30);
    while remaining(&store).await.is_err() {
        assert!(Instant::now() < deadline, "the new password is not found");
    }
    // A file that is empty is an error of its own, without the password.
    std::fs::write(&file, "\n").expect("a file");
    command(&server, "second", DISCONNECT);
    let limiter = limiter_over(store, [policy("p", Limit::per(50, YEAR))]);
    let text = loop {
        match limiter.of("p").try_check(&[("key", "k")], Cost::ONE).await {
            Err(error) if kind(&error) == ErrorKind::Auth => break error.to_string(),
            _ => {}
        }
    };
    let empty = "password is empty: expected the password";
    assert!(text.contains(empty), "{text}");
}

/// The password is replaced between the time it is read and the time the server looks.
#[tokio::test]
async fn password_is_read_again_when_the_server_refuses_it() {
    let server = Server::start_with(&["--requirepass", "second"]);
    let file = server.folder().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.expect("mkfifo").success());
    // A pipe gives each reader what was written last: the old one first.
    let writer = file.clone();
    let writing = std::thread::spawn(move || {
        for password in ["first\n", "second\n"] {
            std::fs::write(&writer, password).expect("a reader");
            // The reader has to see the end before the next one begins.
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let options = patient().connections(1).password(Password::File(file));
    let store = RedisStore::new(&server.url(), options).expect("a store");
    assert_eq!(remaining(&store).await, Ok(49));
    writing.join().expect("all was read");
}

#[test]
fn passwords_certificates_and_keys_are_not_shown() {
    let own = Some((b"CERTIFICATE".to_vec(), b"PRIVATE KEY".to_vec()));
    let options = RedisOptions::default().certificates(Some(b"AUTHORITY".to_vec()), own);
    let shown = format!("{:?}", options.password(Password::Text("hunter2".into())));
    for bytes in ["AUTHORITY", "PRIVATE KEY", "80, 82, 73, 86", "hunter2"] {
        assert!(!shown.contains(bytes), "{shown}");
    }
    for url in ["", "http://:hush@host/", "redis://:hush@host:port/"] {
        let error = RedisStore::new(url, RedisOptions::default().name("eu")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"eu\"") && !text.contains("hush"), "{text}");
    }
}

/// R11: in RESP3, Redis answers INFO in a form that RESP2 does not have.
#[tokio::test]
async fn r11_store_whose_url_asks_for_resp3_is_understood() {
    let server = Server::start_with(&["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"]);
    let url = format!("{}?protocol=resp3", server.url());
    let store = RedisStore::new(&url, patient()).expect("a right url");
    let limiter = limiter_over(store, [policy("p", Limit::per(5, YEAR))]);
    let warnings = limiter.warnings().await;
    assert!(warnings.concat().contains("allkeys-lru"), "{warnings:?}");
    assert_eq!(check(&limiter, "p", &[("key", "k")]).await.remaining(), 4);
}
