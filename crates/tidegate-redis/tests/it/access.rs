//! Who may come in, and how: the user of docs/redis.md, passwords, TLS, other addresses.

use std::io::Write;

use tidegate::{Cost, Limit};
use tidegate_redis::{ErrorKind, Password, RedisOptions, RedisStore, TryCheckError};

use crate::certificates::Certificates;
use crate::server::Server;
use crate::support::{YEAR, check, limiter_over, patient, policy};
use crate::user::{everything, rules, set_user};

fn url(server: &Server, user: &str) -> String {
    format!("redis://{user}@127.0.0.1:{}/", server.port())
}

/// All that a limiter can be asked over this server.
async fn full_run(url: &str, options: RedisOptions, server: &Server) -> Result<(), ErrorKind> {
    everything(url, options, std::slice::from_ref(server)).await
}

#[tokio::test]
async fn the_manuals_user_may_do_all_that_is_needed() {
    for server in Server::start_each() {
        set_user(&server, &rules());
        let url = url(&server, "tidegate:a-long-password");
        assert_eq!(full_run(&url, patient(), &server).await, Ok(()));
    }
}

#[tokio::test]
async fn the_manuals_user_may_do_nothing_that_is_not() {
    for server in Server::start_each() {
        let all = rules();
        for rule in all.iter().filter(|rule| rule.starts_with('+')) {
            let rest: Vec<&str> = all.iter().copied().filter(|it| it != rule).collect();
            set_user(&server, &rest);
            let url = url(&server, "tidegate:a-long-password");
            let run = full_run(&url, patient(), &server).await;
            assert_eq!(run, Err(ErrorKind::NoPermission), "without {rule}");
        }
        // Nor on other keys.
        set_user(&server, &all);
        let url = url(&server, "tidegate:a-long-password");
        let run = full_run(&url, patient().prefix("other"), &server).await;
        assert_eq!(run, Err(ErrorKind::NoPermission));
    }
}

#[tokio::test]
async fn another_database_needs_select() {
    let server = Server::start();
    set_user(&server, &rules());
    let url = format!("{}3", url(&server, "tidegate:a-long-password"));
    // It is tried until the deadline.
    let quick = RedisOptions::default().timeout(std::time::Duration::from_millis(500));
    assert!(full_run(&url, quick, &server).await.is_err());
    set_user(&server, &[&rules()[..], &["+select"]].concat());
    assert_eq!(full_run(&url, patient(), &server).await, Ok(()));
}

#[tokio::test]
async fn a_password_is_asked_for_and_told_apart_from_a_wrong_one() {
    let server = Server::start_with(&["--requirepass", "s e/c:r@t"]);
    let ask = async |user: &str| {
        let store = RedisStore::new(&url(&server, user), patient()).unwrap();
        let limiter = limiter_over(store, [policy("p", Limit::per(5, YEAR))]);
        let asked = limiter.try_check("p", &[("key", "k")], Cost::ONE).await;
        asked.map(|decision| decision.remaining()).map_err(|error| {
            assert!(!error.to_string().contains("wrong-one"), "{error}");
            match error {
                TryCheckError::Store(error) => error.kind(),
                TryCheckError::Check(error) => panic!("{error}"),
            }
        })
    };
    assert_eq!(ask(":s%20e%2Fc%3Ar%40t").await, Ok(4));
    assert_eq!(ask("default:s%20e%2Fc%3Ar%40t").await, Ok(3));
    for wrong in [":wrong-one", "default:wrong-one", "nobody:wrong-one", ""] {
        assert_eq!(ask(wrong).await, Err(ErrorKind::Auth), "{wrong}");
    }
}

/// One check over this URL.
async fn ask(url: &str, options: RedisOptions) -> Result<u32, ErrorKind> {
    let store = RedisStore::new(url, options).map_err(|error| error.kind())?;
    let limiter = limiter_over(store, [policy("p", Limit::per(5, YEAR))]);
    let asked = limiter.try_check("p", &[("key", "k")], Cost::ONE).await;
    asked
        .map(|decision| decision.remaining())
        .map_err(|error| match error {
            TryCheckError::Store(error) => error.kind(),
            TryCheckError::Check(error) => panic!("{error}"),
        })
}

#[tokio::test]
async fn tls_with_an_authority_and_certificates_of_our_own() {
    let certificates = Certificates::make();
    let strangers = Certificates::make();
    let server = Server::start_with(&[
        "--port",
        "0",
        "--tls-port",
        "{port}",
        "--tls-cert-file",
        &certificates.path("server.crt"),
        "--tls-key-file",
        &certificates.path("server.key"),
        "--tls-ca-cert-file",
        &certificates.path("authority.crt"),
        "--tls-auth-clients",
        "yes",
        "--requirepass",
        "secret",
    ]);
    let quick = || RedisOptions::default().timeout(std::time::Duration::from_millis(500));
    let ours = |options: RedisOptions| {
        let authority = certificates.read("authority.crt");
        let own = (
            certificates.read("client.crt"),
            certificates.read("client.key"),
        );
        options.certificates(Some(authority), Some(own))
    };
    let rediss = format!("rediss://:secret@127.0.0.1:{}/", server.port());
    assert_eq!(ask(&rediss, ours(patient())).await, Ok(4));
    let named = format!("rediss://default:secret@localhost:{}/2", server.port());
    assert_eq!(ask(&named, ours(patient())).await, Ok(4));

    // A wrong password, then what an impostor or a stranger would meet.
    let wrong = rediss.replace("secret", "wrong");
    assert_eq!(ask(&wrong, ours(patient())).await, Err(ErrorKind::Auth));
    let refused = [
        ("an authority that is not the server's", {
            let own = (
                certificates.read("client.crt"),
                certificates.read("client.key"),
            );
            quick().certificates(Some(strangers.read("authority.crt")), Some(own))
        }),
        ("public authorities only", quick()),
        ("a client without a certificate", {
            quick().certificates(Some(certificates.read("authority.crt")), None)
        }),
        ("a client of another authority", {
            let own = (strangers.read("client.crt"), strangers.read("client.key"));
            quick().certificates(Some(certificates.read("authority.crt")), Some(own))
        }),
    ];
    for (who, options) in refused {
        let asked = ask(&rediss, options).await;
        assert!(
            matches!(asked, Err(ErrorKind::Connect | ErrorKind::Timeout)),
            "{who}: {asked:?}"
        );
    }
    // In the clear, the server does not answer.
    let clear = rediss.replace("rediss:", "redis:");
    assert!(ask(&clear, quick()).await.is_err());
}

#[tokio::test]
async fn unix_sockets() {
    let folder = std::env::temp_dir().join(format!("tidegate-socket-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("redis.sock");
    let server = Server::start_with(&["--unixsocket", &socket.display().to_string()]);
    let url = format!("redis+unix://{}", socket.display());
    let asked = ask(&url, patient()).await;
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(asked, Ok(4));
}

#[tokio::test]
async fn ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        // Not `eprintln`, whose output is not shown: this should not go unnoticed.
        let not_tested = b"\n*** NOT TESTED OVER IPv6: this machine has no [::1] ***\n";
        std::io::stderr().write_all(not_tested).unwrap();
        return;
    }
    let server = Server::start_with(&["--bind", "127.0.0.1", "::1"]);
    let url = format!("redis://[::1]:{}/", server.port());
    assert_eq!(ask(&url, patient()).await, Ok(4));
}

#[test]
fn a_url_that_cannot_be_meant_is_refused_and_its_password_kept() {
    for url in [
        "",
        "127.0.0.1",
        "http://:hush@host/",
        "redis://:hush@host:port/",
        "redis://:hush@host/x",
    ] {
        let error = RedisStore::new(url, RedisOptions::default().name("eu")).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("\"eu\"") && !text.contains("hush"),
            "{url}: {text}"
        );
    }
}

/// What a store says to one check: what remains, or the kind of the error.
async fn remaining(store: &RedisStore) -> Result<u32, ErrorKind> {
    let limiter = limiter_over(store.clone(), [policy("p", Limit::per(50, YEAR))]);
    let asked = limiter.try_check("p", &[("key", "k")], Cost::ONE).await;
    asked
        .map(|decision| decision.remaining())
        .map_err(|error| match error {
            TryCheckError::Store(error) => error.kind(),
            TryCheckError::Check(error) => panic!("{error}"),
        })
}

/// Ends all connections but the one that asks for it.
fn disconnect(server: &Server, password: &str) {
    let url = url(server, &format!(":{password}"));
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    let kill = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .query::<i64>(&mut connection);
    assert!(kill.expect("a number") > 0);
}

#[tokio::test]
async fn password_file_is_read_for_each_connection() {
    let server = Server::start_with(&["--requirepass", "first"]);
    let file = server.folder().join("password");
    std::fs::write(&file, "first\n").expect("a file");
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let options = patient()
        .username("default")
        .password(Password::File(file.clone()));
    let store = RedisStore::new(&url, options).expect("a store");
    assert_eq!(remaining(&store).await, Ok(49));
    // The password changes on the server first, and connections go on.
    let mut admin = redis::Client::open(url_of(&server, "first"))
        .expect("a URL")
        .get_connection()
        .expect("a connection");
    redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "second"])
        .query::<()>(&mut admin)
        .expect("OK");
    assert_eq!(remaining(&store).await, Ok(48));
    // A new connection finds the old password, which is refused, then the new one.
    disconnect(&server, "second");
    let mut asked = remaining(&store).await;
    while asked == Err(ErrorKind::OutcomeUnknown) {
        asked = remaining(&store).await;
    }
    assert_eq!(asked, Err(ErrorKind::Auth));
    std::fs::write(&file, "second").expect("a file");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while remaining(&store).await.is_err() {
        assert!(
            std::time::Instant::now() < deadline,
            "the new password is not found"
        );
    }
    // A file that is gone or empty is an error of its own, without the password.
    std::fs::write(&file, "\n").expect("a file");
    disconnect(&server, "second");
    let limiter = limiter_over(store.clone(), [policy("p", Limit::per(50, YEAR))]);
    loop {
        let asked = limiter.try_check("p", &[("key", "k")], Cost::ONE).await;
        let Err(TryCheckError::Store(error)) = asked else {
            continue;
        };
        if error.kind() == ErrorKind::Auth {
            let text = error.to_string();
            assert!(
                text.contains("password is empty: expected the password"),
                "{text}"
            );
            break;
        }
    }
    assert!(
        !format!("{:?}", patient().password(Password::Text("hunter2".into()))).contains("hunter2")
    );
}

fn url_of(server: &Server, password: &str) -> String {
    url(server, &format!(":{password}"))
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
        for password in ["first\n", "second\n", "second\n"] {
            std::fs::write(&writer, password).expect("a reader");
            // The reader has to see the end before the next one begins.
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let options = patient().connections(1).password(Password::File(file));
    let store = RedisStore::new(&url, options).expect("a store");
    assert_eq!(remaining(&store).await, Ok(49));
    writing.join().expect("all was read");
}

#[test]
fn certificates_and_keys_are_not_shown() {
    let own = Some((b"CERTIFICATE".to_vec(), b"PRIVATE KEY".to_vec()));
    let options = RedisOptions::default().certificates(Some(b"AUTHORITY".to_vec()), own);
    let shown = format!("{options:?}");
    for bytes in ["AUTHORITY", "PRIVATE KEY", "80, 82, 73, 86"] {
        assert!(!shown.contains(bytes), "{shown}");
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
