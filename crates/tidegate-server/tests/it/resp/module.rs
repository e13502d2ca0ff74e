//! Beside the module redis-cell itself, in a Redis of its own.
//!
//! The module reads the clock of the machine, so the two servers decide a moment apart:
//! limits refill so slowly here that nothing is refilled in the meantime. The version in
//! the crate registry cuts off fractions of a second; later ones round up, as ours does.

use super::{Served, peer};
use crate::redis_server::Server;

/// A generator of numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn cl_throttle_counts_like_the_module_redis_cell() {
    let module = peer("redis-cell/target/release/libredis_cell.so");
    let redis = Server::start_with(&["--loadmodule", &module.display().to_string()]);
    let served = Served::start("[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n");
    let mut own = served.connect();
    let mut others = redis.connect();
    let mut random = Random(7);
    for sequence in 0..300 {
        let (burst, count) = (random.below(12), random.below(5) + 1);
        // A token takes at least a minute.
        let period = 3_600 * (random.below(20) + 1) * count;
        for step in 0..12 {
            let quantity = random.below(5);
            let words = format!("CL.THROTTLE s{sequence} {burst} {count} {period} {quantity}");
            let ours = own.ask(&words).numbers();
            let mut asked = redis::Cmd::new();
            words.split(' ').for_each(|word| {
                asked.arg(word);
            });
            let theirs: Vec<i64> = asked.query(&mut others).expect("five numbers");
            assert_eq!(ours[..2], theirs[..2], "{words}, step {step}");
            // Something may have been refilled by a stall of the machine: not a token.
            assert_eq!(
                ours[2], theirs[2],
                "{words}, step {step}: {ours:?}, {theirs:?}"
            );
            for index in [3, 4] {
                let (our, their) = (ours[index], theirs[index]);
                let is_same = our == their || (their >= 0 && our - their == 1);
                // A machine that stalls between the two moves the second clock.
                let is_near = their > 0 && (our - their).abs() <= 60;
                assert!(
                    is_same || is_near,
                    "{words}, step {step}: {ours:?}, {theirs:?}"
                );
            }
        }
    }
}
