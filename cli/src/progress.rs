//! Progress on stderr: a bar on a terminal. Without a terminal, the demo prints lines, and
//! transfers print nothing.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;
use crate::size::human;

const BAR: &str = "{bar:40} {percent:>3} %  {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
/// Template if the length of the input is unknown.
const COUNTER: &str = "{spinner} {binary_bytes}  {binary_bytes_per_sec}";

#[derive(Debug)]
pub(crate) enum Progress {
    Bar(ProgressBar),
    Lines { total_bytes: u64, done_bytes: u64, next_percent: u64 },
    Hidden,
}

impl Progress {
    /// Progress of the demo: without a terminal, a line for every ten percent.
    pub(crate) fn checked(total_bytes: u64) -> Self {
        match Self::transfer(Some(total_bytes)) {
            Self::Hidden => Self::Lines { total_bytes, done_bytes: 0, next_percent: 10 },
            bar => bar,
        }
    }

    /// Progress of `read` and `write`, shown only on a terminal, as a script may keep their stderr.
    pub(crate) fn transfer(total_bytes: Option<u64>) -> Self {
        if !stderr().is_terminal() {
            return Self::Hidden;
        }
        let (bar, template) = match total_bytes {
            Some(total_bytes) => (ProgressBar::new(total_bytes), BAR),
            None => (ProgressBar::no_length(), COUNTER),
        };
        let style = ProgressStyle::with_template(template).expect("a constant template");
        Self::Bar(bar.with_style(style))
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        match self {
            Self::Bar(bar) => bar.inc(bytes),
            Self::Lines { total_bytes, done_bytes, next_percent } => {
                *done_bytes += bytes;
                let percent =
                    (u128::from(*done_bytes) * 100 / u128::from(*total_bytes).max(1)) as u64;
                if percent >= *next_percent {
                    let total = human(*total_bytes);
                    output::note(format_args!("{percent} % of {total} checked"));
                    *next_percent = percent / 10 * 10 + 10;
                }
            }
            Self::Hidden => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
