//! `tidegate bench`: load for a store or a server, from several processes if need be.
//!
//! ```text
//! arguments -> target, policy -> plan -> processes (callers) -> tally -> judge -> report
//! ```
//!
//! Each process is a node of its own, as a server of a fleet would be. Every admitted
//! check comes back to the process that was started first, which holds all of them
//! together to the limit's bound.

mod arguments;
mod plan;
mod server;
mod target;

mod fleet;
mod worker;

mod asker;
mod callers;
mod keys;
mod pace;
mod probe;

mod counted;
mod tally;
mod wire;

mod formula;
mod judge;
mod summary;

use crate::figures;
mod plot;
mod report;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use tidegate_config::StoreUrl;

use crate::{FAILED, say};
pub use arguments::{Bench, duration};
use plan::Plan;
use summary::Summary;
use target::Target;

pub use worker::run as worker;

/// Puts load on a store or a server, and says how it fared and whether the limit held.
pub async fn run(arguments: &Bench) -> anyhow::Result<ExitCode> {
    let subject = target::find(arguments).await?;
    subject.check(arguments)?;
    let (policy, limits) = (subject.policy.clone(), subject.limits.clone());
    let name = shown(&subject.target, policy.store());
    let plan = Plan::new(arguments, subject);
    // Before the run, or all of it would be for nothing.
    let plotted = arguments.plot.as_deref().map(create).transpose()?;
    let gathered = fleet::run(&plan).await?;
    if !plan.target.is_server() && gathered.counted.is_all_without_store() {
        let kinds = gathered.counted.store_errors.keys();
        let kinds = kinds.map(String::as_str).collect::<Vec<_>>().join(", ");
        bail!("the store answered no check ({kinds}): nothing was measured");
    }
    let losses = arguments.losses;
    let judged = judge::judge(&plan, &policy, &limits, &gathered, losses);
    let summary = Summary::new(name, &plan, &policy, &limits, &gathered, &judged, losses);
    match arguments.json {
        true => say(&serde_json::to_string(&summary)?),
        false => say(&report::text(&summary, &gathered.counted.waits)),
    }
    if let Some(mut file) = plotted {
        let picture = plot::picture(&summary, &gathered.counted.waits)?;
        file.write_all(picture.as_bytes())?;
    }
    Ok(match summary.verdict.held {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => ExitCode::from(FAILED),
    })
}

fn create(file: &Path) -> anyhow::Result<File> {
    File::create(file).with_context(|| format!("--plot {}", file.display()))
}

/// Whom it was that was asked, without a password.
fn shown(target: &Target, store: &str) -> String {
    match target {
        Target::Server { url, .. } => url.clone(),
        Target::Store { .. } => {
            let config = target.config().ok();
            let url = config.and_then(|config| Some(config.stores.get(store)?.url.clone()));
            url.unwrap_or(StoreUrl::Memory).to_string()
        }
    }
}
