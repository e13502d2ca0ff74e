//! The thread that writes a record, and the queue to it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::Receiver;

use tidegate_lab::line::Dropped;

/// The most that waits to be written, in bytes.
const MAX_QUEUED: usize = 8 << 20;

/// What is known of the queue on both of its ends.
#[derive(Debug, Default)]
pub(super) struct Queue {
    bytes: AtomicUsize,
    /// Lines that found no room and that the record does not tell of yet.
    pub(super) dropped: AtomicU64,
    /// Nothing more is written.
    pub(super) stopped: AtomicBool,
}

impl Queue {
    /// Whether there is room for so many bytes, which are then taken.
    pub(super) fn admits(&self, bytes: usize) -> bool {
        let admitted = self.bytes.fetch_add(bytes, Relaxed) + bytes <= MAX_QUEUED;
        if !admitted {
            self.bytes.fetch_sub(bytes, Relaxed);
        }
        admitted
    }
}

pub(super) struct Writer {
    pub(super) name: String,
    pub(super) file: File,
    /// How long the file is, and how long it may be.
    pub(super) written: u64,
    pub(super) limit: u64,
    pub(super) queue: Arc<Queue>,
}

impl Writer {
    /// Writes until the file is full, cannot be written, or an empty line comes.
    pub(super) fn run(self, lines: &Receiver<Vec<u8>>) {
        let (file, queue) = (&self.name, Arc::clone(&self.queue));
        let done = self.write(lines);
        queue.stopped.store(true, Relaxed);
        match done {
            Ok(true) => {}
            Ok(false) => {
                let limit = self.limit;
                tracing::warn!(
                    file,
                    limit,
                    "the record has reached its size limit: recording stops"
                );
            }
            Err(error) => {
                tracing::error!(file, %error, "the record cannot be written: recording stops");
            }
        }
    }

    /// Whether it ended on request, and not because the file is full.
    fn write(&self, lines: &Receiver<Vec<u8>>) -> std::io::Result<bool> {
        let mut file = BufWriter::with_capacity(1 << 16, &self.file);
        let mut left = self.limit.saturating_sub(self.written);
        loop {
            let line = match lines.try_recv() {
                Ok(line) => line,
                Err(_) => {
                    // Nobody is waiting to be written: a good time for the disk.
                    file.flush()?;
                    match lines.recv() {
                        Ok(line) => line,
                        Err(_) => return Ok(true),
                    }
                }
            };
            self.queue.bytes.fetch_sub(line.len(), Relaxed);
            let mut text = Vec::new();
            match self.queue.dropped.swap(0, Relaxed) {
                0 => {}
                dropped => Dropped { dropped }.write(&mut text),
            }
            let is_last = line.is_empty();
            text.extend(line);
            match left.checked_sub(text.len() as u64) {
                Some(rest) => left = rest,
                None => {
                    file.flush()?;
                    return Ok(false);
                }
            }
            file.write_all(&text)?;
            if is_last {
                file.flush()?;
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn lost_records_are_counted_where_they_are_missing() {
        let queue = Arc::new(Queue::default());
        assert!(queue.admits(MAX_QUEUED - 1));
        assert!(!queue.admits(2));
        assert!(queue.admits(1));
        assert!(!queue.admits(1));
        let name = format!("tidegate-record-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let writer = Writer {
            name: path.display().to_string(),
            file: File::create(&path).unwrap(),
            written: 0,
            limit: 1_000,
            queue: Arc::clone(&queue),
        };
        let (lines, received) = channel();
        queue.dropped.store(3, Relaxed);
        for line in ["one\n", "two\n", ""] {
            lines.send(line.into()).unwrap();
        }
        writer.run(&received);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "{\"dropped\":3}\none\ntwo\n");
        assert!(queue.admits(8), "what is written makes room");
        assert!(queue.stopped.load(Relaxed));
    }
}
