//! `cargo xtask bench simulate`: how fast `tidegate simulate` is and how much memory it takes
//! on ten million generated lines, and how right the sliding window is on traffic by Zipf's
//! law.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{output, program, root, run, target};

/// The lines of the log that is timed, and those of the log that algorithms are compared on.
const LINES: u64 = 10_000_000;

/// The clients of a generated log: as many as Cloudflare reports.
const CLIENTS: usize = 270_000;

/// Midnight of 16 November 2026, in seconds since the Unix epoch.
const START: u64 = 1_794_787_200;

/// How long the log takes, in seconds.
const SPAN: u64 = 3_600;

/// How a generated line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Nginx,
    Json,
}

/// Clients drawn by Zipf's law: client number n as often as 1/n.
struct Zipf {
    /// For each client, the share of requests of all up to it.
    below: Vec<f64>,
    state: u64,
}

impl Zipf {
    fn new(clients: usize) -> Self {
        let mut sum = 0.0;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let below = (1..=clients).map(|number| {
            sum += 1.0 / number as f64;
            sum
        });
        let below: Vec<f64> = below.collect();
        Self {
            below: below.iter().map(|part| part / sum).collect(),
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// The next number from 0 to 1: the same in each run.
    #[expect(clippy::cast_precision_loss, reason = "only 53 bits are left")]
    fn next(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn client(&mut self) -> usize {
        let drawn = self.next();
        self.below
            .partition_point(|part| *part < drawn)
            .min(self.below.len() - 1)
    }
}

/// Writes a log: requests at random instants of an hour, of clients by Zipf's law.
fn generate(file: &Path, lines: u64, look: Look) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    let mut zipf = Zipf::new(CLIENTS);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let gap_us = SPAN as f64 * 1e6 / lines as f64;
    let mut at_us = 0.0;
    for _ in 0..lines {
        // Gaps of a Poisson process.
        at_us -= gap_us * (1.0 - zipf.next()).ln();
        let client = zipf.client();
        let [a, b] = [client / 250, client % 250 + 1];
        let (high, low) = (a / 256, a % 256);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "about an hour"
        )]
        let at_us = at_us as u64;
        match look {
            Look::Nginx => {
                let second = at_us / 1_000_000;
                writeln!(
                    out,
                    "10.{high}.{low}.{b} - - [16/Nov/2026:{:02}:{:02}:{:02} +0000] \"GET /products/{}?page=2 HTTP/1.1\" 200 5316 \"https://shop.example/\" \"Mozilla/5.0 (X11; Linux x86_64) Firefox/131.0\"",
                    second / 3_600,
                    second / 60 % 60,
                    second % 60,
                    client % 1_000
                )
            }
            Look::Json => writeln!(
                out,
                "{{\"ts\":{}.{:06},\"ip\":\"10.{high}.{low}.{b}\"}}",
                START + at_us / 1_000_000,
                at_us % 1_000_000
            ),
        }?;
    }
    out.flush()?;
    Ok(())
}

/// A run: how long it took, on the clock and of the processors, the most memory it had, and
/// what it said.
struct Run {
    seconds: f64,
    processor_seconds: f64,
    megabytes: u64,
    said: String,
}

/// Ends a process that is not waited for.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn simulate(tidegate: &Path, arguments: &[&str]) -> Result<Run> {
    let report = root().join("target/simulate/result.json");
    let start = Instant::now();
    let mut command = program(tidegate);
    command.arg("simulate").arg("--json").args(arguments);
    command.stdout(Stdio::from(File::create(&report)?));
    let mut process = Ended(command.spawn().context("tidegate")?);
    let entry = PathBuf::from(format!("/proc/{}", process.0.id()));
    let (mut kilobytes, mut hundredths) = (0, 0);
    let ended = loop {
        // Both only grow. What happens after the last look takes a hundredth of a second.
        kilobytes = most_memory(&entry).unwrap_or(0).max(kilobytes);
        hundredths = processor_time(&entry).unwrap_or(0).max(hundredths);
        if let Some(ended) = process.0.try_wait()? {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    ensure!(ended.success(), "tidegate simulate {arguments:?}: {ended}");
    Ok(Run {
        seconds: start.elapsed().as_secs_f64(),
        processor_seconds: float(hundredths) / 100.0,
        megabytes: kilobytes / 1_024,
        said: std::fs::read_to_string(&report)?,
    })
}

/// The most memory that a process has had so far, in KiB.
fn most_memory(entry: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(entry.join("status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// The processor time of a process so far, in hundredths of a second: also of threads that
/// have ended.
fn processor_time(entry: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(entry.join("stat")).ok()?;
    // The name of the program may have spaces. After it: the state, ten other fields, then
    // the time in user mode and in the kernel.
    let (_, fields) = text.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let mut next = || times.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// A number of the JSON, by the first field of this name.
fn field(json: &str, name: &str) -> Result<u64> {
    let start = format!("\"{name}\":");
    let rest = json.split(&start).nth(1);
    let rest = rest.with_context(|| format!("no {name:?} in the result"))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits
        .parse()
        .with_context(|| format!("{name:?} is no number"))
}

/// The figures for docs/benchmarks.md, and those for docs/algorithms.md.
pub(crate) fn measure(quick: bool) -> Result<[String; 2]> {
    let tidegate = target()?.join("release/tidegate");
    let folder = root().join("target/simulate");
    std::fs::create_dir_all(&folder)?;
    let lines = if quick { LINES / 100 } else { LINES };
    let measured = speed(&tidegate, &folder, lines).and_then(|speed| {
        let right = rightness(&tidegate, &folder, lines)?;
        Ok([speed, right])
    });
    // Gigabytes that nobody needs.
    std::fs::remove_dir_all(&folder)?;
    measured
}

const POLICY: &str = "[[policies]]\nname = \"address\"\nkey = \"{ip}\"\n";

fn speed(tidegate: &Path, folder: &Path, lines: u64) -> Result<String> {
    let write = |name: &str, text: String| -> Result<PathBuf> {
        let path = folder.join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    };
    let one = write(
        "one.toml",
        format!("{POLICY}limit = \"10r/s\"\nburst = 20\n"),
    )?;
    let three = write(
        "three.toml",
        format!(
            "{POLICY}limit = \"10r/s\"\nburst = 20\n\
             [[policies]]\nname = \"minute\"\nkey = \"{{ip}}\"\nlimit = \"300r/m\"\nalgorithm = \"sliding_window\"\n\
             [[policies]]\nname = \"page\"\nkey = \"{{ip}}:{{path}}\"\nlimit = \"5r/s\"\n"
        ),
    )?;
    let nginx = folder.join("access.log");
    let json = folder.join("access.json");
    eprintln!("generating two logs of {lines} lines");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| generate(&json, lines, Look::Json));
        generate(&nginx, lines, Look::Nginx)?;
        other.join().expect("generating returns errors")
    })?;
    let bytes = nginx.metadata()?.len();
    let packed = folder.join("access.log.gz");
    run(program("sh")
        .arg("-c")
        .arg("gzip -1 < \"$1\" > \"$2\"")
        .arg("sh")
        .args([&nginx, &packed]))?;
    let text = |path: &Path| {
        path.to_str()
            .map(str::to_owned)
            .context("a path that is no text")
    };
    let (one, three) = (text(&one)?, text(&three)?);
    let (nginx, packed, json) = (text(&nginx)?, text(&packed)?, text(&json)?);
    let rows: [(&str, Vec<&str>); 4] = [
        ("nginx, one policy", vec!["--config", &one, &nginx]),
        ("nginx in gzip, one policy", vec!["--config", &one, &packed]),
        ("nginx, three policies", vec!["--config", &three, &nginx]),
        (
            "JSON, one policy",
            vec!["--config", &one, "--format", "json", &json],
        ),
    ];
    let (threads, load) = machine();
    let mut table = format!(
        "{} lines ({:.1} GB as nginx writes them) of {CLIENTS} clients by Zipf's law, on {threads} threads; \
         load average before the first run: {load}.\n\n\
         | log | seconds | processor seconds | lines per second | most memory |\n| --- | ---: | ---: | ---: | ---: |\n",
        thousands(lines),
        float(bytes) / 1e9
    );
    for (name, arguments) in rows {
        eprintln!("measuring: {name}");
        let run = simulate(tidegate, &arguments)?;
        if field(&run.said, "lines")? != lines || field(&run.said, "unreadable")? != 0 {
            bail!("{name}: not all lines were read");
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate that is a small number of millions"
        )]
        let per_second = (float(lines) / run.seconds) as u64;
        writeln!(
            table,
            "| {name} | {:.1} | {:.1} | {} | {} MiB |",
            run.seconds,
            run.processor_seconds,
            thousands(per_second),
            run.megabytes
        )?;
    }
    Ok(table)
}

fn rightness(tidegate: &Path, folder: &Path, lines: u64) -> Result<String> {
    let json = folder.join("access.json");
    let mut table = format!(
        "{} requests of {CLIENTS} clients by Zipf's law, in an hour:\n\n\
         | limit per address | refused requests | wrongly admitted | wrongly refused | decided differently |\n\
         | --- | --- | ---: | ---: | ---: |\n",
        thousands(lines)
    );
    for limit in ["60r/m", "600r/m", "6000r/m"] {
        for counted in [true, false] {
            eprintln!("comparing: {limit}, count_denied = {counted}");
            let config = folder.join("compare.toml");
            let policy = format!("{POLICY}limit = \"{limit}\"\ncount_denied = {counted}\n");
            std::fs::write(&config, policy)?;
            let (config, log) = (config.display().to_string(), json.display().to_string());
            let run = simulate(
                tidegate,
                &[
                    "--config",
                    &config,
                    "--format",
                    "json",
                    "--compare",
                    "sliding_window,sliding_log",
                    &log,
                ],
            )?;
            let refused = field(&run.said, "only_first_denied")?;
            let admitted = field(&run.said, "only_second_denied")?;
            let share = |number: u64| format!("{:.4} %", 100.0 * float(number) / float(lines));
            writeln!(
                table,
                "| `{limit}` | {} | {} | {} | {} |",
                if counted { "counted" } else { "not counted" },
                share(admitted),
                share(refused),
                share(admitted + refused)
            )?;
        }
    }
    Ok(table)
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
fn float(number: u64) -> f64 {
    number as f64
}

/// The threads of this machine, and how busy it was in the last minute.
fn machine() -> (usize, String) {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let load = output(program("cat").arg("/proc/loadavg")).unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown").to_owned();
    (threads, load)
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_follow_zipfs_law() {
        let mut zipf = Zipf::new(1_000);
        let mut counts = vec![0_u32; 1_000];
        for _ in 0..100_000 {
            counts[zipf.client()] += 1;
        }
        // The harmonic number of 1,000 is 7.485: the first has 13.4 % of all, the tenth a
        // tenth of that.
        assert!((13_000..13_800).contains(&counts[0]), "{}", counts[0]);
        assert!((1_150..1_550).contains(&counts[9]), "{}", counts[9]);
    }
}
