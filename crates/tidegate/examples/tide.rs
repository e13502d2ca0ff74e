//! A limiter at work: three clients with different paces meet one limit of
//! 10 requests per second with a burst of 5. Run it with
//! `cargo run --release --example tide`; it takes five seconds.

#![expect(clippy::print_stdout, reason = "an example is there to be looked at")]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tidegate::{Limit, Limiter};

const RATE: u32 = 10;
const BURST: u32 = 5;
const TICK: Duration = Duration::from_millis(100);
const TICKS: u32 = 45;

fn main() -> ExitCode {
    let limiter = Limiter::in_memory(Limit::per_second(RATE).burst(BURST));
    let mut clients = [("calm", 6), ("brisk", 14), ("greedy", 40)].map(Client::new);
    let terminal = std::io::stdout().is_terminal();
    let color = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());

    println!("Three clients, each with a limit of {}.\n", limiter.limit());
    let legend = [Tick::Admitted, Tick::Mixed, Tick::Refused];
    let legend = legend.map(|tick| format!("{} {tick:?}", tick.block(color)));
    let legend = legend.join("  ").to_lowercase();
    println!("client  0.1 s a block: {legend}     in  out  next");

    let start = Instant::now();
    for tick in 1..=TICKS {
        let due = TICK * tick;
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        for client in &mut clients {
            client.ask(&limiter, due);
        }
        // A terminal is redrawn in place, a file gets one picture a second.
        if terminal || tick % 9 == 0 {
            let up = if terminal && tick > 1 { "\x1b[3A" } else { "" };
            let lines = clients.each_ref().map(|client| client.line(color));
            println!("{up}{}", lines.join("\n"));
        }
    }

    println!("\nclient   pace  asked  admitted  refused  at most  promise");
    let broken = clients.iter().filter(|client| !client.summary()).count();
    if broken > 0 {
        return ExitCode::FAILURE;
    }
    println!("\nNobody got more than {BURST} + {RATE} * t in the t seconds of asking.");
    ExitCode::SUCCESS
}

/// What became of a client's requests in one tick.
#[derive(Debug, Clone, Copy)]
enum Tick {
    Quiet,
    Admitted,
    Mixed,
    Refused,
}

impl Tick {
    fn block(self, color: bool) -> String {
        let (block, code) = match self {
            Self::Quiet => ("·", 90),
            Self::Admitted => ("█", 32),
            Self::Mixed => ("▒", 33),
            Self::Refused => ("x", 31),
        };
        if !color {
            return block.into();
        }
        format!("\x1b[{code}m{block}\x1b[0m")
    }
}

#[derive(Default)]
struct Client {
    name: &'static str,
    /// Requests it makes each second.
    pace: u32,
    ticks: Vec<Tick>,
    admitted: u32,
    refused: u32,
    /// When its first and last requests were decided.
    first_us: u64,
    last_us: u64,
    /// What the last decision said.
    status: String,
}

impl Client {
    fn new((name, pace): (&'static str, u32)) -> Self {
        Self {
            name,
            pace,
            first_us: u64::MAX,
            ..Self::default()
        }
    }

    /// Makes the requests that are due by now.
    fn ask(&mut self, limiter: &Limiter, due: Duration) {
        let before = (self.admitted, self.refused);
        while Duration::from_secs(1) * (self.admitted + self.refused) < due * self.pace {
            let decision = limiter.check(self.name);
            self.last_us = decision.decided_at_us();
            self.first_us = self.first_us.min(self.last_us);
            if decision.allowed() {
                self.admitted += 1;
                self.status = format!("{} left", decision.remaining());
            } else {
                self.refused += 1;
                let wait = decision.retry_after().unwrap_or(Duration::MAX);
                self.status = format!("in {} ms", wait.as_micros().div_ceil(1_000));
            }
        }
        let tick = match (self.admitted - before.0, self.refused - before.1) {
            (0, 0) => Tick::Quiet,
            (_, 0) => Tick::Admitted,
            (0, _) => Tick::Refused,
            _ => Tick::Mixed,
        };
        self.ticks.push(tick);
    }

    fn line(&self, color: bool) -> String {
        let ticks: String = self.ticks.iter().map(|tick| tick.block(color)).collect();
        let padding = " ".repeat(TICKS as usize - self.ticks.len());
        let (name, status) = (self.name, &self.status);
        let (admitted, refused) = (self.admitted, self.refused);
        format!("{name:<6}  {ticks}{padding} {admitted:>3} {refused:>4}  {status:<9}")
    }

    /// Prints the totals, and says whether the limit's promise was kept.
    fn summary(&self) -> bool {
        let (name, pace) = (self.name, self.pace);
        let (admitted, refused) = (self.admitted, self.refused);
        let asked = admitted + refused;
        let elapsed_us = self.last_us.saturating_sub(self.first_us);
        let bound = u64::from(BURST) + u64::from(RATE) * elapsed_us / 1_000_000;
        let kept = u64::from(admitted) <= bound;
        let promise = if kept { "kept" } else { "BROKEN" };
        println!(
            "{name:<6} {pace:>4}/s {asked:>6} {admitted:>9} {refused:>8} {bound:>8}  {promise}"
        );
        kept
    }
}
