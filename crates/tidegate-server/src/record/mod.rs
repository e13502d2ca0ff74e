//! A record of decisions for `tidegate verify`: one JSON line each, written by a separate
//! thread so that no request waits for a disk.
//!
//! The queue to that thread is bounded in bytes. Decisions that do not fit are dropped, and
//! the record says how many.

mod writer;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tidegate::{Attributes, Cost, LevelKey, Limit, PolicyDecision, Receipt};
use tidegate_lab::line::Line;

use crate::engine::{Bucket, Call, Entry, Redaction};
use writer::{Queue, Writer};

/// Where decisions go to be recorded.
pub(crate) struct Recorder {
    lines: Sender<Vec<u8>>,
    queue: Arc<Queue>,
    redaction: Arc<Redaction>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Appends to a file that is to grow no longer than so many bytes.
    pub(crate) fn open(
        file: &Path,
        limit: u64,
        redaction: Arc<Redaction>,
    ) -> std::io::Result<Self> {
        let opened = File::options().create(true).append(true).open(file)?;
        let written = opened.metadata()?.len();
        let (lines, received) = channel();
        let queue = Arc::new(Queue::default());
        let writer = Writer {
            name: file.display().to_string(),
            file: opened,
            written,
            limit,
            queue: Arc::clone(&queue),
        };
        let thread = std::thread::Builder::new().name("record".into());
        let thread = thread.spawn(move || writer.run(&received))?;
        Ok(Self {
            lines,
            queue,
            redaction,
            writer: Mutex::new(Some(thread)),
        })
    }

    /// Records a decision: a line for each level that counts.
    pub(crate) fn decided(&self, call: &Call<'_>, decision: &PolicyDecision<'_>) {
        // As the counts have it, which go on as if a policy that only watches refused.
        let allowed = decision.allowed() && !decision.would_deny();
        let limit = call.bucket.map(Bucket::limit);
        self.levels(call.entry, call.attributes, limit, |_| {
            let (source, at_us) = (decision.source().as_str(), decision.decided_at_us());
            Some((at_us, call.cost, source, allowed, false))
        });
    }

    /// Records that what a decision charged was given back.
    pub(crate) fn refunded(&self, entry: &Entry, attributes: &dyn Attributes, receipt: &Receipt) {
        self.levels(entry, attributes, None, |level| {
            let (cost, _) = receipt.charges().nth(level)?;
            Some((receipt.decided_at_us(), cost, "store", true, true))
        });
    }

    /// Puts a line for each level into the queue.
    fn levels(
        &self,
        entry: &Entry,
        attributes: &dyn Attributes,
        limit: Option<&Limit>,
        what: impl Fn(usize) -> Option<(u64, Cost, &'static str, bool, bool)>,
    ) {
        let policy = entry.policy();
        // A user-defined script has no bound, and a disabled policy counts nothing.
        if policy.script().is_some() || !policy.enabled() || self.queue.stopped.load(Relaxed) {
            return;
        }
        let Ok(keys) = policy.keys(attributes) else {
            return;
        };
        let keys = keys.with_limit(limit);
        let (mut text, mut count) = (Vec::new(), 0);
        for (index, key) in keys.iter().enumerate() {
            let Some((at_us, cost, source, allowed, refunded)) = what(index) else {
                continue;
            };
            let line = Line {
                policy: policy.name().into(),
                level: key.level().name().into(),
                key: self.key(&key, entry.logs_keys()).into(),
                limit: Some(key.limit().to_string().into()),
                at_us,
                cost: cost.get(),
                allowed,
                source: source.into(),
                refunded,
            };
            line.write(&mut text);
            count += 1;
        }
        if count == 0 {
            return;
        }
        if self.queue.admits(text.len()) {
            // Fails when the writer has ended: then it has said why.
            drop(self.lines.send(text));
        } else {
            self.queue.dropped.fetch_add(count, Relaxed);
        }
    }

    /// The key, if it may be shown, or else what tells it from others.
    fn key(&self, key: &LevelKey<'_>, plain: bool) -> String {
        if plain {
            return key.text().into_owned();
        }
        self.redaction.hash(&key.text())
    }

    /// Waits until all that was recorded is in the file.
    pub(crate) fn finish(&self) {
        // An empty line is the last.
        drop(self.lines.send(Vec::new()));
        let writer = self.writer.lock().ok().and_then(|mut writer| writer.take());
        if let Some(writer) = writer {
            drop(writer.join());
        }
    }
}
