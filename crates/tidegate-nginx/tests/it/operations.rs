//! Reload, graceful quit, binary upgrade and killed workers, under load.

mod timing {
    use std::net::TcpStream;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Duration;

    use tidegate_testkit::http::{Connection, get, request, statuses};
    use tidegate_testkit::nginx::{children, master};
    use tidegate_testkit::process::{signal, until};
    use tidegate_testkit::redis::Server;

    use crate::nginx::{Load, Stop, reload, serving, serving_zones, start, start_daemon, store};

    /// Every kind of zone, with room for all, and one with room for three.
    fn config(redis: &Server) -> String {
        let zones = "
            tidegate_zone l key=$remote_addr rate=1000000r/s mode=local;
            tidegate_zone e key=$remote_addr rate=1000000r/s mode=exact;
            tidegate_zone a key=$remote_addr rate=1000000r/s mode=lease;
            tidegate_zone b key=$remote_addr rate=1000000r/s mode=background;
            tidegate_zone few key=all rate=3r/d mode=local;";
        serving_zones(&(store(redis, "10s") + zones), &["l", "e", "a", "b", "few"])
    }

    /// Works under load, of which this many requests may be cut off.
    fn under_load(port: u16, lost: usize, work: impl FnOnce()) {
        let cut = Load::run(port, &["/l", "/e", "/a", "/b"], &[200], |load| {
            load.wait_for(100);
            work();
            load.wait_for(100);
        });
        assert!(cut <= lost, "{cut} requests failed");
    }

    #[test]
    fn reload_under_load_fails_no_request() {
        let redis = Server::start();
        let config = config(&redis);
        let nginx = start(2, &config);
        assert_eq!(statuses(nginx.port(), "/few", 2), [200; 2]);
        under_load(nginx.port(), 0, || {
            for _ in 0..3 {
                reload(&nginx, 2, &config);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        assert_eq!(statuses(nginx.port(), "/few", 2), [200, 429]);
        nginx.wait_for_workers_other_than(&[]);
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }

    #[test]
    fn quit_waits_for_requests_that_wait_for_redis() {
        let redis = Server::start();
        let zone = store(&redis, "30s") + "tidegate_zone z key=all rate=100r/d mode=exact;";
        let mut nginx = start(1, &serving(&zone, "location / { tidegate z; }"));
        assert_eq!(get(nginx.port(), "/").status, 200);
        redis.signal("STOP");
        let port = nginx.port();
        std::thread::scope(|scope| {
            let waiting = [(); 10].map(|()| scope.spawn(move || get(port, "/").status));
            std::thread::sleep(Duration::from_millis(500));
            nginx.signal("QUIT");
            std::thread::sleep(Duration::from_millis(500));
            redis.signal("CONT");
            assert_eq!(waiting.map(|client| client.join().unwrap()), [200; 10]);
        });
        assert!(nginx.ends());
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }

    #[test]
    fn binary_upgrade_under_load_fails_no_request() {
        let redis = Server::start();
        let nginx = start_daemon(2, &config(&redis));
        let old = nginx.id();
        under_load(nginx.port(), 0, || {
            nginx.signal("USR2");
            let new = until("another master", || {
                let new = master(nginx.folder(), "nginx.pid")?;
                (new != old && children(new).len() == 2).then_some(new)
            });
            nginx.signal("WINCH");
            until("no old workers", || (children(old) == [new]).then_some(()));
        });
        let new = master(nginx.folder(), "nginx.pid").unwrap();
        assert_eq!(statuses(nginx.port(), "/few", 4), [200, 200, 200, 429]);
        nginx.signal("QUIT");
        assert_eq!(get(nginx.port(), "/l").status, 200);
        signal(new, "TERM");
        until("its end", || {
            TcpStream::connect(("127.0.0.1", nginx.port())).err()
        });
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }

    #[test]
    fn killed_worker_takes_only_its_own_connections_along() {
        let redis = Server::start();
        let nginx = start(2, &config(&redis));
        assert_eq!(statuses(nginx.port(), "/few", 2), [200; 2]);
        let kills = 5;
        // Each of the four clients can lose a request per kill.
        under_load(nginx.port(), 4 * kills, || {
            for _ in 0..kills {
                let killed = nginx.worker_ids()[0];
                signal(killed, "KILL");
                nginx.wait_for_workers_other_than(&[killed]);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        assert_eq!(statuses(nginx.port(), "/few", 2), [200, 429]);
    }

    /// A lock's owner, as the module writes it into shared memory.
    fn owner(id: u32) -> [u8; 8] {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        let mut fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
        let started: u64 = fields.nth(19).unwrap().parse().unwrap();
        (u64::from(id) << 32 | started & u64::from(u32::MAX)).to_ne_bytes()
    }

    /// Whether a process that stands still holds a lock in memory that it shares with others.
    fn holds_a_lock(id: u32, owner: [u8; 8]) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{id}/maps")).unwrap();
        let memory = std::fs::File::open(format!("/proc/{id}/mem")).unwrap();
        let mut shared = maps
            .lines()
            .filter(|line| line.contains("rw-s") && line.contains("/dev/zero"));
        shared.any(|line| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [start, end] = [start, end].map(|it| u64::from_str_radix(it, 16).unwrap());
            let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
            memory.read_exact_at(&mut bytes, start).unwrap();
            bytes.chunks_exact(8).any(|word| word == owner)
        })
    }

    #[test]
    fn worker_killed_while_it_holds_a_lock_does_not_stop_the_others() {
        let zone = "tidegate_zone z key=$arg_k rate=1000000r/s size=128k; tidegate_headers off;";
        let nginx = start(2, &serving(zone, "location / { tidegate z; }"));
        let port = nginx.port();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in 0..2 {
                let is_over = &is_over;
                scope.spawn(move || {
                    // Many requests on a connection: most of a worker's time goes to them. Few
                    // enough at once that a killed worker cuts none of its answers in two.
                    let requests = request("HEAD", &format!("/?k={client}"), &[], &[]).repeat(50);
                    while !is_over.load(Relaxed) {
                        let mut connection = Connection::tcp(&format!("127.0.0.1:{port}"));
                        loop {
                            connection.send(&requests);
                            if (0..50).any(|_| connection.receive("HEAD").is_none()) {
                                break;
                            }
                        }
                    }
                });
            }
            let _stop = Stop(&is_over);
            let id = until("a lock that is held", || {
                let id = nginx.worker_ids()[0];
                let owner = owner(id);
                signal(id, "STOP");
                let holds = holds_a_lock(id, owner);
                signal(id, if holds { "KILL" } else { "CONT" });
                holds.then_some(id)
            });
            nginx.wait_for_workers_other_than(&[id]);
        });
        // The keys of both clients: one of them was behind the lock.
        for key in 0..2 {
            assert_eq!(statuses(port, &format!("/?k={key}"), 10), [200; 10]);
        }
    }
}
