//! Bytes of a log: opened, unpacked by what they begin with, and cut into lines.

use std::fs::File;
use std::io::{self, Read, Stdin};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use flate2::read::MultiGzDecoder;
use memchr::memchr;

/// The longest line, in bytes: one that never ends must not fill the memory.
pub(super) const MAX_LINE: usize = 1 << 20;

/// How much is read at once.
const CHUNK: usize = 256 << 10;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// A log that can be opened.
#[derive(Debug, Clone)]
pub(super) enum Log {
    /// Standard input.
    Input,
    /// A file.
    File(PathBuf),
}

impl Log {
    pub(super) fn new(path: &Path) -> Self {
        match path == Path::new("-") {
            true => Self::Input,
            false => Self::File(path.to_owned()),
        }
    }

    /// What messages call it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Input => "standard input".into(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Whether it can be opened twice and says the same: pipes do not.
    pub(super) fn is_repeatable(&self) -> bool {
        match self {
            Self::Input => false,
            Self::File(path) => path.metadata().is_ok_and(|it| it.is_file()),
        }
    }

    /// How long it is, if that is known.
    pub(super) fn length(&self) -> Option<u64> {
        match self {
            Self::Input => None,
            Self::File(path) => {
                let metadata = path.metadata().ok()?;
                metadata.is_file().then_some(metadata.len())
            }
        }
    }

    /// Its lines. `read` counts the bytes as they come from the disk.
    pub(super) fn open(&self, read: &Arc<AtomicU64>) -> io::Result<Lines> {
        let bytes: Raw = match self {
            Self::Input => Raw::Input(io::stdin()),
            Self::File(path) => {
                let file = File::open(path)?;
                if file.metadata()?.is_dir() {
                    return Err(io::ErrorKind::IsADirectory.into());
                }
                Raw::File(file)
            }
        };
        let counted = Counted {
            bytes,
            read: Arc::clone(read),
        };
        Lines::new(unpack(counted)?)
    }
}

enum Raw {
    Input(Stdin),
    File(File),
}

/// Counts what is read.
struct Counted {
    bytes: Raw,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = match &mut self.bytes {
            Raw::Input(input) => input.read(buffer),
            Raw::File(file) => file.read(buffer),
        }?;
        self.read.fetch_add(length as u64, Relaxed);
        Ok(length)
    }
}

/// Unpacks what begins like something that is packed.
fn unpack(mut bytes: Counted) -> io::Result<Box<dyn Read + Send>> {
    let mut start = Vec::new();
    (&mut bytes).take(4).read_to_end(&mut start)?;
    let is_gzip = start.starts_with(GZIP);
    let is_zstd = start.starts_with(ZSTD);
    let all = io::Cursor::new(start).chain(bytes);
    Ok(match (is_gzip, is_zstd) {
        (true, _) => {
            let buffered = io::BufReader::with_capacity(CHUNK, all);
            Box::new(MultiGzDecoder::new(buffered))
        }
        (_, true) => Box::new(zstd::stream::read::Decoder::new(all)?),
        _ => Box::new(all),
    })
}

/// A line of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'b> {
    /// Its bytes, without the end.
    Whole(&'b [u8]),
    /// It is longer than [`MAX_LINE`]; this is how it begins.
    TooLong(&'b [u8]),
}

/// Cuts bytes into lines.
pub(super) struct Lines {
    bytes: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    /// The part of the buffer that has not been handed out.
    start: usize,
    end: usize,
    is_over: bool,
}

impl Lines {
    fn new(bytes: Box<dyn Read + Send>) -> io::Result<Self> {
        Ok(Self {
            bytes,
            buffer: vec![0; CHUNK],
            start: 0,
            end: 0,
            is_over: false,
        })
    }

    /// The next line.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut seen = self.start;
        loop {
            if let Some(found) = memchr(b'\n', &self.buffer[seen..self.end]) {
                let (start, end) = (self.start, seen + found);
                self.start = end + 1;
                return Ok(Some(whole(&self.buffer[start..end])));
            }
            if self.is_over {
                let (start, end) = (self.start, self.end);
                self.start = end;
                return Ok((start < end).then(|| whole(&self.buffer[start..end])));
            }
            if self.end - self.start > MAX_LINE {
                return self.skip().map(Some);
            }
            let kept = self.end - self.start;
            self.fill()?;
            seen = self.start + kept;
        }
    }

    /// Reads more behind what is there.
    fn fill(&mut self) -> io::Result<()> {
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.buffer.len() - self.end < CHUNK / 2 {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        loop {
            match self.bytes.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.is_over = true,
                Ok(length) => self.end += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }

    /// Drops the rest of a line that is too long, and keeps its beginning to show.
    fn skip(&mut self) -> io::Result<Line<'_>> {
        const SHOWN: usize = 256;
        self.buffer.copy_within(self.start..self.start + SHOWN, 0);
        loop {
            self.end = SHOWN;
            self.start = SHOWN;
            self.fill()?;
            if let Some(found) = memchr(b'\n', &self.buffer[SHOWN..self.end]) {
                self.start = SHOWN + found + 1;
                break;
            }
            if self.is_over {
                self.start = self.end;
                break;
            }
        }
        Ok(Line::TooLong(&self.buffer[..SHOWN]))
    }
}

fn whole(line: &[u8]) -> Line<'_> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line.len() > MAX_LINE {
        true => Line::TooLong(&line[..256]),
        false => Line::Whole(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out a few bytes at a time, as a slow pipe would.
    struct Trickle(io::Cursor<Vec<u8>>, usize);

    impl Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(self.1);
            self.0.read(&mut buffer[..length])
        }
    }

    #[test]
    fn lines_are_cut_wherever_reads_end_and_endless_ones_are_skipped() {
        for length in [0, MAX_LINE, MAX_LINE + 1, 9 * MAX_LINE] {
            let text = ["one\ntwo\r\n\n", &"x".repeat(length), "\nfour"].concat();
            for at_once in [3, 4_096, CHUNK] {
                let trickle = Trickle(io::Cursor::new(text.clone().into_bytes()), at_once);
                let mut lines = Lines::new(Box::new(trickle)).unwrap();
                let mut seen = Vec::new();
                while let Some(line) = lines.next().unwrap() {
                    seen.push(match line {
                        Line::Whole(bytes) if bytes.len() > 4 => "whole".to_owned(),
                        Line::Whole(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
                        Line::TooLong(_) => "too long".to_owned(),
                    });
                }
                let long = match length {
                    0 => "",
                    1..=MAX_LINE => "whole",
                    _ => "too long",
                };
                assert_eq!(seen, ["one", "two", "", long, "four"], "{length} {at_once}");
            }
        }
    }
}
