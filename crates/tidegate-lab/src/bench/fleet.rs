//! Starts the processes of a run. All begin at the same instant and return their counters.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use futures_util::future::try_join_all;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::ctrl_c;
use tokio::time::{interval, timeout};

use super::counted::{Admitted, Counted, Offered};
use super::figures::thousands;
use super::plan::{Go, Plan, Said};
use super::wire;

/// How long processes may take to be ready, and to hand over at the end.
const PATIENCE: Duration = Duration::from_secs(120);

/// How far ahead the beginning is set, so that all hear of it in time.
const AHEAD: Duration = Duration::from_millis(100);

/// What all processes have counted.
pub(super) struct Gathered {
    pub(super) counted: Counted,
    pub(super) decisions: Vec<Admitted>,
    /// Of each process; none where that could not be kept.
    pub(super) offered: Vec<Option<Vec<Offered>>>,
    /// Somebody has ended it early.
    pub(super) interrupted: bool,
}

/// A process.
struct Node {
    /// It ends with this.
    _process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// How far a process is.
#[derive(Default)]
struct Progress {
    checks: AtomicU64,
    admitted: AtomicU64,
}

/// What a process has handed over.
struct Handed {
    counted: Counted,
    decisions: Vec<Admitted>,
    offered: Vec<Offered>,
}

/// Runs a plan in as many processes as it says.
pub(super) async fn run(plan: &Plan) -> anyhow::Result<Gathered> {
    let numbers = 0..plan.processes;
    let nodes = numbers.map(|number| {
        Node::start(Plan {
            number,
            ..plan.clone()
        })
    });
    let nodes = timeout(PATIENCE, try_join_all(nodes)).await;
    let nodes = nodes.context("the bench processes were not ready in time")??;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let at_us = u64::try_from((now + AHEAD).as_micros())?;
    let progress: Vec<Arc<Progress>> = nodes.iter().map(|_| Arc::default()).collect();
    let (mut inputs, mut reading) = (Vec::new(), Vec::new());
    for (node, progress) in nodes.into_iter().zip(&progress) {
        let Node {
            _process: process,
            mut input,
            output,
        } = node;
        write(&mut input, &Go { at_us }).await?;
        inputs.push(input);
        let reading_one = handed(process, output, Arc::clone(progress));
        reading.push(tokio::spawn(reading_one));
    }
    let all = try_join_all(reading);
    let all = timeout(AHEAD + plan.duration + PATIENCE, all);
    tokio::pin!(all);
    let (bar, start) = (bar(plan), Instant::now() + AHEAD);
    let mut ticks = interval(Duration::from_millis(100));
    let mut interrupted = false;
    let handed = loop {
        tokio::select! {
            all = &mut all => break all.context("the bench processes did not stop in time")??,
            _ = ticks.tick() => show(&bar, start, &progress),
            pressed = ctrl_c() => {
                pressed?;
                if std::mem::replace(&mut interrupted, true) {
                    bail!("interrupted twice: nothing is reported");
                }
                for input in &mut inputs {
                    // A process that has ended needs no message.
                    drop(input.write_all(b"stop\n").await);
                }
            }
        }
    };
    bar.finish_and_clear();
    let handed: Result<Vec<Handed>, _> = handed.into_iter().collect();
    gather(handed?, interrupted)
}

fn gather(handed: Vec<Handed>, interrupted: bool) -> anyhow::Result<Gathered> {
    let mut all: Option<Gathered> = None;
    for one in handed {
        let offered = one.counted.offered_whole.then_some(one.offered);
        match &mut all {
            Some(all) => {
                all.counted.join(&one.counted);
                all.decisions.extend(one.decisions);
                all.offered.push(offered);
            }
            None => {
                all = Some(Gathered {
                    counted: one.counted,
                    decisions: one.decisions,
                    offered: vec![offered],
                    interrupted,
                });
            }
        }
    }
    all.context("no process counted a check")
}

impl Node {
    /// A process that is ready to begin.
    async fn start(plan: Plan) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?;
        let mut process = Command::new(program)
            .arg("bench-worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a bench process cannot be started")?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (mut input, output) = input.zip(output).context("pipes to a process")?;
        let mut output = BufReader::new(output);
        write(&mut input, &plan).await?;
        match said(&mut output).await? {
            Said::Ready => Ok(Self {
                _process: process,
                input,
                output,
            }),
            Said::Failed(error) => Err(anyhow!(error)),
            other => bail!("a bench process sent {other:?}: expected it to be ready"),
        }
    }
}

async fn write(input: &mut ChildStdin, line: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    Ok(input.write_all(&line).await?)
}

async fn said(output: &mut BufReader<ChildStdout>) -> anyhow::Result<Said> {
    let mut line = String::new();
    if output.read_line(&mut line).await? == 0 {
        bail!("a bench process ended too early");
    }
    Ok(serde_json::from_str(&line)?)
}

/// What a process hands over in the end.
async fn handed(
    mut process: Child,
    mut output: BufReader<ChildStdout>,
    progress: Arc<Progress>,
) -> anyhow::Result<Handed> {
    loop {
        match said(&mut output).await? {
            Said::Progress { checks, admitted } => {
                progress.checks.store(checks, Relaxed);
                progress.admitted.store(admitted, Relaxed);
            }
            Said::Done { counted, bytes } => {
                let mut packed = vec![0; usize::try_from(bytes)?];
                output.read_exact(&mut packed).await?;
                process.wait().await?;
                let (decisions, offered) = wire::unpack(&packed)?;
                return Ok(Handed {
                    counted: *counted,
                    decisions,
                    offered,
                });
            }
            other => bail!("a bench process sent {other:?}: expected its progress"),
        }
    }
}

/// A bar on standard error, if that is a terminal. It has no colours.
fn bar(plan: &Plan) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(plan.duration.as_millis()).unwrap_or(u64::MAX));
    let style = ProgressStyle::with_template("{bar:32} {msg}");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

fn show(bar: &ProgressBar, start: Instant, progress: &[Arc<Progress>]) {
    let elapsed = start.elapsed();
    let sum = |figure: fn(&Progress) -> &AtomicU64| -> u64 {
        progress.iter().map(|it| figure(it).load(Relaxed)).sum()
    };
    let (checks, admitted) = (sum(|it| &it.checks), sum(|it| &it.admitted));
    bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
    bar.set_message(format!(
        "{:.1} s, {} checks, {} admitted",
        elapsed.as_secs_f64(),
        thousands(checks),
        thousands(admitted)
    ));
}
