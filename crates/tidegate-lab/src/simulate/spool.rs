//! Batches on disk, to be decided again under other limits: a file in the temporary folder
//! that has no name, so that it goes with the process, however that ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::Context;

use super::batch::Batch;

/// All batches of a run.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    length: u64,
    buffer: Vec<u8>,
}

impl Spool {
    pub(super) fn new() -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("tidegate-simulate-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .and_then(|file| std::fs::remove_file(&path).map(|()| file));
        let file = file.with_context(|| {
            format!(
                "{}: cannot store requests for the next pass; set TMPDIR to use another folder",
                path.display()
            )
        })?;
        Ok(Self {
            file,
            length: 0,
            buffer: Vec::new(),
        })
    }

    pub(super) fn push(&mut self, batch: &Batch) -> anyhow::Result<()> {
        self.buffer.clear();
        batch.write(&mut self.buffer);
        self.length += self.buffer.len() as u64;
        let written = self.file.write_all(&self.buffer);
        written.context("cannot store requests for the next pass; set TMPDIR to use another folder")
    }

    /// Hands the batches to `each` until it has seen enough (`false`). Several threads may
    /// do so at once.
    pub(super) fn replay(&self, mut each: impl FnMut(&Batch) -> bool) -> io::Result<()> {
        let (mut batch, mut rest) = (Batch::default(), Vec::new());
        let mut at = 0;
        while at < self.length {
            let mut head = [0; 8];
            self.file.read_exact_at(&mut head, at)?;
            rest.resize(Batch::written_length(head), 0);
            self.file.read_exact_at(&mut rest, at + 8)?;
            at += 8 + rest.len() as u64;
            batch.read(head, &rest);
            if !each(&batch) {
                break;
            }
        }
        Ok(())
    }
}
