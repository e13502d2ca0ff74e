//! Reload, graceful quit, binary upgrade and killed workers, under load.

mod timing {
    use std::net::TcpStream;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use crate::client::{get, pipelined, request, statuses, try_exchange};
    use crate::nginx::{Nginx, children, serving};
    use crate::process::{send_signal, wait_for};
    use crate::redis::{Redis, store};

    /// Every kind of zone, with room for all.
    fn config(redis: &Redis) -> String {
        let zones = format!(
            "{} tidegate_zone l key=$remote_addr rate=1000000r/s mode=local;
             tidegate_zone e key=$remote_addr rate=1000000r/s mode=exact;
             tidegate_zone a key=$remote_addr rate=1000000r/s mode=lease;
             tidegate_zone b key=$remote_addr rate=1000000r/s mode=background;
             tidegate_zone few key=all rate=3r/d mode=local;",
            redis.store()
        );
        let locations = "
            location /l { tidegate l; try_files /index.html =404; }
            location /e { tidegate e; try_files /index.html =404; }
            location /a { tidegate a; try_files /index.html =404; }
            location /b { tidegate b; try_files /index.html =404; }
            location /few { tidegate few; try_files /index.html =404; }";
        serving(&zones, locations)
    }

    struct Stop<'s>(&'s AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    /// Asks all the time while something else happens. Every request has to be answered with
    /// 200, but for `lost`, which may be cut off.
    fn under_load(port: u16, lost: usize, work: impl FnOnce()) {
        let (stop, done, cut) = (
            AtomicBool::new(false),
            AtomicUsize::new(0),
            AtomicUsize::new(0),
        );
        std::thread::scope(|scope| {
            for client in 0..4 {
                let (stop, done, cut) = (&stop, &done, &cut);
                scope.spawn(move || {
                    for path in ["/l", "/e", "/a", "/b"].iter().cycle().skip(client) {
                        if stop.load(Relaxed) {
                            break;
                        }
                        match try_exchange(port, &request("GET", path, &[])) {
                            Ok(response) => assert_eq!(response.status, 200, "{path}"),
                            Err(_) => {
                                cut.fetch_add(1, Relaxed);
                                std::thread::sleep(Duration::from_millis(5));
                            }
                        }
                        done.fetch_add(1, Relaxed);
                    }
                });
            }
            let go_on = |more: usize| {
                let until = done.load(Relaxed) + more;
                wait_for(|| (done.load(Relaxed) >= until).then_some(()));
            };
            // Whatever happens, the clients stop.
            let _stop = Stop(&stop);
            go_on(100);
            work();
            go_on(100);
        });
        let cut = cut.load(Relaxed);
        assert!(
            cut <= lost,
            "{cut} of {} requests failed",
            done.load(Relaxed)
        );
    }

    #[test]
    fn reload_under_load_fails_no_request() {
        let redis = Redis::start();
        let config = config(&redis);
        let nginx = Nginx::start_workers(2, &config);
        assert_eq!(statuses(nginx.port, "/few", 2), [200; 2]);
        under_load(nginx.port, 0, || {
            for _ in 0..3 {
                nginx.reload(&config);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        assert_eq!(statuses(nginx.port, "/few", 2), [200, 429]);
        wait_for(|| (nginx.worker_ids().len() == 2).then_some(()));
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }

    #[test]
    fn quit_waits_for_requests_that_wait_for_redis() {
        let redis = Redis::start();
        let zones = format!(
            "{} tidegate_zone z key=all rate=100r/d mode=exact;",
            store(redis.port, "30s")
        );
        let mut nginx = Nginx::serve(1, &zones, "location / { tidegate z; }");
        assert_eq!(get(nginx.port, "/").status, 200);
        redis.process.signal("STOP");
        let port = nginx.port;
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..10)
                .map(|_| scope.spawn(move || get(port, "/").status))
                .collect();
            std::thread::sleep(Duration::from_millis(500));
            nginx.signal("QUIT");
            std::thread::sleep(Duration::from_millis(500));
            redis.process.signal("CONT");
            for client in waiting {
                assert_eq!(client.join().unwrap(), 200);
            }
        });
        assert!(nginx.ends());
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }

    #[test]
    fn binary_upgrade_under_load_fails_no_request() {
        let redis = Redis::start();
        let nginx = Nginx::start_daemon(2, &config(&redis));
        under_load(nginx.port, 0, || {
            nginx.signal("USR2");
            let old = nginx.id();
            let new = wait_for(|| {
                let pid = std::fs::read_to_string(nginx.folder.path().join("nginx.pid")).ok()?;
                let pid: u32 = pid.trim().parse().ok()?;
                (pid != old && children(pid).len() == 2).then_some(pid)
            });
            nginx.signal("WINCH");
            wait_for(|| (children(old) == [new]).then_some(()));
        });
        let new: u32 = nginx.read("nginx.pid").trim().parse().unwrap();
        assert_eq!(statuses(nginx.port, "/few", 4), [200, 200, 200, 429]);
        nginx.signal("QUIT");
        assert_eq!(get(nginx.port, "/l").status, 200);
        send_signal(new, "TERM");
        wait_for(|| TcpStream::connect(("127.0.0.1", nginx.port)).err());
        assert_eq!(nginx.errors(), Vec::<String>::new());
    }

    #[test]
    fn killed_worker_takes_only_its_own_connections_along() {
        let redis = Redis::start();
        let nginx = Nginx::start_workers(2, &config(&redis));
        assert_eq!(statuses(nginx.port, "/few", 2), [200; 2]);
        let kills = 5;
        // Each of the four clients can lose a request per kill.
        under_load(nginx.port, 4 * kills, || {
            for _ in 0..kills {
                let before = nginx.worker_ids();
                send_signal(before[0], "KILL");
                wait_for(|| {
                    let now = nginx.worker_ids();
                    (now.len() == 2 && !now.contains(&before[0])).then_some(())
                });
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        assert_eq!(statuses(nginx.port, "/few", 2), [200, 429]);
    }

    /// A lock's owner, as the module writes it into shared memory.
    fn owner(id: u32) -> [u8; 8] {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        let mut fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
        let started: u64 = fields.nth(19).unwrap().parse().unwrap();
        (u64::from(id) << 32 | started & u64::from(u32::MAX)).to_ne_bytes()
    }

    /// The memory of a process that it shares with others.
    fn shared_memory(id: u32) -> Vec<(u64, usize)> {
        let maps = std::fs::read_to_string(format!("/proc/{id}/maps")).unwrap();
        let shared = maps
            .lines()
            .filter(|line| line.contains("rw-s") && line.contains("/dev/zero"));
        let ranges = shared.map(|line| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            (
                number(start),
                usize::try_from(number(end) - number(start)).unwrap(),
            )
        });
        ranges.collect()
    }

    /// Whether a process that stands still holds a lock.
    fn holds_a_lock(id: u32, owner: [u8; 8], ranges: &[(u64, usize)]) -> bool {
        let memory = std::fs::File::open(format!("/proc/{id}/mem")).unwrap();
        ranges.iter().any(|&(start, length)| {
            let mut bytes = vec![0; length];
            memory.read_exact_at(&mut bytes, start).unwrap();
            bytes.chunks_exact(8).any(|word| word == owner)
        })
    }

    #[test]
    fn worker_killed_while_it_holds_a_lock_does_not_stop_the_others() {
        let zones = "tidegate_zone z key=$arg_k rate=1000000r/s size=128k; tidegate_headers off;";
        let nginx = Nginx::serve(2, zones, "location / { tidegate z; }");
        let port = nginx.port;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in 0..2 {
                let stop = &stop;
                scope.spawn(move || {
                    // Many requests on a connection: most of a worker's time goes to them.
                    let requests = vec![format!("/?k={client}"); 500];
                    while !stop.load(Relaxed) {
                        // A killed worker cuts them off.
                        drop(pipelined(port, &requests));
                    }
                });
            }
            let _stop = Stop(&stop);
            let killed = wait_for(|| {
                let id = *nginx.worker_ids().first()?;
                let (owner, ranges) = (owner(id), shared_memory(id));
                send_signal(id, "STOP");
                if holds_a_lock(id, owner, &ranges) {
                    send_signal(id, "KILL");
                    return Some(id);
                }
                send_signal(id, "CONT");
                None
            });
            wait_for(|| {
                let now = nginx.worker_ids();
                (now.len() == 2 && !now.contains(&killed)).then_some(())
            });
        });
        // The keys of both clients: one of them was behind the lock.
        for key in 0..2 {
            assert_eq!(statuses(port, &format!("/?k={key}"), 10), [200; 10]);
        }
    }
}
