//! Zones in shared memory.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::client::{get, statuses};
use crate::nginx::{Nginx, serving};

#[test]
fn workers_share_a_zone() {
    let zones = "tidegate_zone z key=all rate=100r/d;";
    let nginx = Nginx::serve(4, zones, "location / { tidegate z; tidegate_headers off; }");
    assert_eq!(nginx.worker_ids().len(), 4);
    let passed: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| statuses(nginx.port, "/", 40)))
            .collect();
        let all = clients
            .into_iter()
            .flat_map(|client| client.join().unwrap());
        all.filter(|&status| status == 200).count()
    });
    assert_eq!(passed, 100);
    assert_eq!(nginx.errors(), Vec::<String>::new());
}

#[test]
fn reload_keeps_counts_and_another_limit_keeps_what_was_used() {
    let config = |rate: &str, size: &str| {
        let zone = format!("tidegate_zone z key=all rate={rate} size={size};");
        serving(&zone, "location / { tidegate z; }")
    };
    let nginx = Nginx::start_workers(2, &config("5r/d", "1m"));
    assert_eq!(statuses(nginx.port, "/", 3), [200; 3]);
    nginx.reload(&config("5r/d", "1m"));
    assert_eq!(statuses(nginx.port, "/", 3), [200, 200, 429]);
    nginx.reload(&config("10r/d", "1m"));
    let next = get(nginx.port, "/");
    assert_eq!(next.status, 200);
    assert!(
        next.header("RateLimit").unwrap().starts_with("\"z\";r=4;"),
        "{next:?}"
    );
    nginx.reload(&config("3r/d", "1m"));
    assert_eq!(get(nginx.port, "/").status, 429);
    // Memory of another size is other memory.
    nginx.reload(&config("3r/d", "2m"));
    assert_eq!(statuses(nginx.port, "/", 4), [200, 200, 200, 429]);
    assert_eq!(nginx.errors(), Vec::<String>::new());
}

#[test]
fn wrong_config_is_not_loaded_and_the_old_one_goes_on() {
    let config = serving(
        "tidegate_zone z key=all rate=2r/d;",
        "location / { tidegate z; }",
    );
    let nginx = Nginx::start(&config);
    assert_eq!(get(nginx.port, "/").status, 200);
    let text = nginx.read("nginx.conf").replace("rate=2r/d", "rate=2r/y");
    std::fs::write(nginx.folder.path().join("nginx.conf"), text).unwrap();
    nginx.signal("HUP");
    crate::process::wait_for(|| {
        nginx
            .read("error.log")
            .contains("rate=2r/y: ")
            .then_some(())
    });
    assert_eq!(statuses(nginx.port, "/", 2), [200, 429]);
}

#[test]
fn zone_of_a_fixed_size_takes_any_number_of_keys() {
    let zones = "tidegate_zone z key=$arg_k rate=1r/h size=128k; keepalive_requests 1000000;";
    let nginx = Nginx::serve(1, zones, "location / { tidegate z; tidegate_headers off; }");
    let mut stream = TcpStream::connect(("127.0.0.1", nginx.port)).unwrap();
    let mut answers = stream.try_clone().unwrap();
    let keys = 20_000;
    let reader = std::thread::spawn(move || {
        let (mut bytes, mut chunk) = (Vec::new(), [0; 65_536]);
        while bytes.windows(4).filter(|it| it == b"\r\n\r\n").count() < 1 || !ended(&bytes, keys) {
            let read = answers.read(&mut chunk).unwrap();
            assert!(read > 0, "cut off");
            bytes.extend_from_slice(&chunk[..read]);
        }
        String::from_utf8(bytes).unwrap()
    });
    for key in 0..keys {
        let request = format!("HEAD /index.html?k={key} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
    }
    let answers = reader.join().unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), keys);
    assert_eq!(nginx.errors(), Vec::<String>::new());
}

/// Whether so many answers without a body are there.
fn ended(bytes: &[u8], answers: usize) -> bool {
    bytes.len() > answers * 150 && bytes.ends_with(b"\r\n\r\n") && {
        let text = String::from_utf8_lossy(bytes);
        text.matches("HTTP/1.1 ").count() == answers
    }
}
