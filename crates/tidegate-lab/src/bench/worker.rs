//! `tidegate bench-worker`: a process of the bench. It reads its plan, begins when it is
//! told, and says what it has counted. When nobody listens any more, it ends.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use tidegate_redis::Policies;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin, stdin};
use tokio::signal::ctrl_c;
use tokio::sync::oneshot;
use tokio::time::interval;

use super::asker::{Asked, Asker};
use super::callers::Run;
use super::plan::{Go, Plan, Said};
use super::{probe, wire};

/// A run in which the store has answered nothing for so long from the start is ended.
const SILENCE: Duration = Duration::from_secs(2);

/// How often a process says how far it is.
const PROGRESS: Duration = Duration::from_millis(200);

/// The longest that a beginning may lie ahead.
const MAX_AHEAD: Duration = Duration::from_secs(10);

/// What a process that `bench` has started does.
pub async fn run() -> anyhow::Result<ExitCode> {
    // The parent process also gets the interrupt, and says when to stop.
    tokio::spawn(async { while ctrl_c().await.is_ok() {} });
    let mut lines = BufReader::new(stdin()).lines();
    let plan: Plan = serde_json::from_str(&line(&mut lines).await?)?;
    let (asked, askers, probes) = match prepare(&plan).await {
        Ok(prepared) => prepared,
        Err(error) => {
            tell(&Said::Failed(format!("{error:#}")))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    tell(&Said::Ready)?;
    let go: Go = serde_json::from_str(&line(&mut lines).await?)?;
    let ahead = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let ahead = Duration::from_micros(go.at_us).saturating_sub(ahead);
    let run = Arc::new(Run::new(plan, Instant::now() + ahead.min(MAX_AHEAD)));
    let stopped = Arc::clone(&run);
    tokio::spawn(async move {
        // Any word, and the end.
        drop(lines.next_line().await);
        stopped.stop();
    });
    let before = (asked.store_errors(), asked.store_commands());
    let telling = tokio::spawn(progress(Arc::clone(&run)));
    let (stop, stopped) = oneshot::channel();
    let probing = probes.map(|limiter| probe::run(run.plan.clone(), limiter, stopped));
    let probing = probing.map(tokio::spawn);
    run.run(askers).await;
    telling.abort();
    drop(telling.await);
    if let Some(probing) = probing {
        // It fails only if the task has ended.
        let _ = stop.send(());
        run.tally().counted.told = probing.await?;
    }
    finish(&run, &asked, &before)
}

async fn line(lines: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<String> {
    let line = lines.next_line().await?;
    line.context("no plan to run: this command is for `tidegate bench`")
}

/// Makes connections, and a way to ask for each caller.
async fn prepare(plan: &Plan) -> anyhow::Result<(Asked, Vec<Asker>, Option<Policies>)> {
    let asked = Asked::new(plan)?;
    asked.warm_up(plan).await?;
    let mut askers = Vec::new();
    for _ in 0..plan.callers {
        askers.push(asked.asker(plan).await);
    }
    if askers.is_empty() {
        bail!("no callers");
    }
    Ok((asked, askers, probe::limiter(plan)?))
}

async fn progress(run: Arc<Run>) {
    let mut ticks = interval(PROGRESS);
    loop {
        ticks.tick().await;
        let said = {
            let counted = &run.tally().counted;
            if counted.is_all_without_store() && run.start.elapsed() > SILENCE {
                run.stop();
            }
            let checks = counted.answered() + counted.failed();
            Said::Progress {
                checks,
                admitted: counted.admitted(),
            }
        };
        if tell(&said).is_err() {
            run.stop();
            return;
        }
    }
}

fn finish(
    run: &Run,
    asked: &Asked,
    (errors_before, commands_before): &(BTreeMap<String, u64>, u64),
) -> anyhow::Result<ExitCode> {
    let mut tally = run.tally();
    let errors = asked.store_errors().into_iter().map(|(kind, count)| {
        let earlier = errors_before.get(&kind).copied().unwrap_or(0);
        (kind, count - earlier)
    });
    tally.counted.store_errors = errors.filter(|(_, count)| *count > 0).collect();
    tally.counted.evicted = asked.evicted();
    tally.counted.store_commands = asked.store_commands() - commands_before;
    let packed = wire::pack(&tally.decisions, &tally.offered);
    tell(&Said::Done {
        counted: Box::new(tally.counted.clone()),
        bytes: packed.len() as u64,
    })?;
    let mut out = std::io::stdout().lock();
    out.write_all(&packed)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn tell(said: &Said) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    Ok(())
}
