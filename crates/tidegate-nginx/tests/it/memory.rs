//! Zones in shared memory.

use std::io::{BufRead, BufReader, Write};
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
    let answers = stream.try_clone().unwrap();
    let keys = 20_000;
    let reader = std::thread::spawn(move || {
        let (mut lines, mut statuses) = (BufReader::new(answers).lines(), Vec::new());
        while statuses.len() < keys {
            let line = lines.next().expect("cut off").unwrap();
            if let Some(status) = line.strip_prefix("HTTP/1.1 ") {
                statuses.push(status.to_owned());
            }
        }
        statuses
    });
    for key in 0..keys {
        let request = format!("HEAD /index.html?k={key} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
    }
    let statuses = reader.join().unwrap();
    assert!(statuses.iter().all(|status| status == "200 OK"));
    assert_eq!(nginx.errors(), Vec::<String>::new());
}
