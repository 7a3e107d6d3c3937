//! The bytes of logs: files and standard input, gzip or not, with progress on the terminal.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, stdin};
use std::path::{Path, PathBuf};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressBarIter, ProgressStyle};

use super::gzip::{self, Gzip};

const BUFFER: usize = 128 * 1024;

/// A longer line is read in parts, which are no requests.
const LONGEST: u64 = 1 << 20;

/// The mark that Windows writes in front of a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The first bytes of files that are no text, and what to do about them.
const NO_TEXT: [(&[u8], &str, &str); 6] = [
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc FILE"),
    (b"\xfd7zXZ\0", "compressed by xz", "xz -dc FILE"),
    (b"BZh", "compressed by bzip2", "bzip2 -dc FILE"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -dc FILE"),
    (b"PK\x03\x04", "a zip archive", "unzip -p FILE"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE"),
];

/// All logs, one after the other.
pub(super) struct Input {
    /// Not begun yet.
    files: VecDeque<PathBuf>,
    name: String,
    current: Option<Box<dyn BufRead>>,
    /// `true` if nothing was read of the current one.
    is_first_line: bool,
    /// Lines that were read to recognize the format.
    sampled: VecDeque<Vec<u8>>,
    bar: ProgressBar,
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

impl Input {
    /// Opens logs. No file is standard input.
    pub(super) fn open(files: &[PathBuf]) -> anyhow::Result<Self> {
        let mut size = Some(0);
        for file in files {
            let is_file = !is_stdin(file);
            let metadata = is_file.then(|| {
                file.metadata()
                    .with_context(|| format!("cannot read {}", file.display()))
            });
            size = metadata
                .transpose()?
                .zip(size)
                .map(|(it, size)| it.len() + size);
        }
        let mut files: VecDeque<_> = files.to_vec().into();
        if files.is_empty() {
            files.push_back("-".into());
            size = None;
        }
        let bar = bar(size)?;
        let (name, current) = (String::new(), None);
        Ok(Self {
            files,
            name,
            current,
            is_first_line: true,
            sampled: VecDeque::new(),
            bar,
        })
    }

    /// The first lines, which are read again afterwards.
    pub(super) fn sample(&mut self, lines: usize) -> anyhow::Result<Vec<String>> {
        let mut sampled = VecDeque::new();
        for _ in 0..lines {
            let mut line = Vec::new();
            if self
                .read_until(b'\n', &mut line)
                .map_err(|error| self.failed(&error))?
                == 0
            {
                break;
            }
            sampled.push_back(line);
        }
        let text = |line: &Vec<u8>| String::from_utf8_lossy(line).trim_end().to_owned();
        let texts = sampled.iter().map(text).collect();
        self.sampled = sampled;
        Ok(texts)
    }

    /// Reads a line with its end. 0: there are no more.
    pub(super) fn read_until(&mut self, end: u8, line: &mut Vec<u8>) -> io::Result<usize> {
        if let Some(sampled) = self.sampled.pop_front() {
            line.extend_from_slice(&sampled);
            return Ok(line.len());
        }
        loop {
            if let Some(current) = &mut self.current {
                let read = current.by_ref().take(LONGEST).read_until(end, line)?;
                if read > 0 {
                    if std::mem::take(&mut self.is_first_line) {
                        check_text(line)?;
                        let mark = usize::from(line.starts_with(BYTE_ORDER_MARK));
                        line.drain(..mark * BYTE_ORDER_MARK.len());
                    }
                    return Ok(read);
                }
            }
            let Some(file) = self.files.pop_front() else {
                return Ok(0);
            };
            self.name = if is_stdin(&file) {
                "standard input".to_owned()
            } else {
                file.display().to_string()
            };
            self.current = Some(self.begin(&file)?);
            self.is_first_line = true;
        }
    }

    fn begin(&self, file: &Path) -> io::Result<Box<dyn BufRead>> {
        let bytes: Box<dyn Read> = if is_stdin(file) {
            Box::new(stdin())
        } else {
            Box::new(File::open(file)?)
        };
        let counted: ProgressBarIter<_> = self.bar.wrap_read(bytes);
        let mut bytes: Box<dyn BufRead> = Box::new(BufReader::with_capacity(BUFFER, counted));
        Ok(match gzip::begins(&mut bytes)? {
            true => Box::new(BufReader::with_capacity(
                BUFFER,
                Gzip::new(bytes, &self.name),
            )),
            false => bytes,
        })
    }

    /// The error of a read, with the name of the log.
    pub(super) fn failed(&self, error: &io::Error) -> anyhow::Error {
        anyhow::anyhow!("cannot read {}: {error}", self.name)
    }

    /// Removes the progress bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// An error for what is no text, such as a file that another program compressed.
fn check_text(line: &[u8]) -> io::Result<()> {
    let Some((_, is, remedy)) = NO_TEXT.iter().find(|(magic, ..)| line.starts_with(magic)) else {
        return Ok(());
    };
    Err(io::Error::other(format!(
        "it is {is}; replay reads text and gzip: `{remedy} | tollgate replay ...`"
    )))
}

/// A bar with the time left, or without a size only with what was read. On a terminal only.
fn bar(size: Option<u64>) -> anyhow::Result<ProgressBar> {
    let (bar, template) = match size {
        Some(size) => (
            ProgressBar::new(size),
            "{percent:>3}% {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left",
        ),
        None => (
            ProgressBar::new_spinner(),
            "{spinner} {bytes} read, {bytes_per_sec}",
        ),
    };
    bar.set_style(ProgressStyle::with_template(template)?);
    Ok(bar)
}
