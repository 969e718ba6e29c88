//! How far the demo is: a bar on a terminal, a line per ten percent elsewhere.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;
use crate::size::human;

#[derive(Debug)]
pub(crate) enum Progress {
    Bar(ProgressBar),
    Lines { total_bytes: u64, done_bytes: u64, next_percent: u64 },
}

impl Progress {
    pub(crate) fn new(total_bytes: u64) -> Self {
        if !stderr().is_terminal() {
            return Self::Lines { total_bytes, done_bytes: 0, next_percent: 10 };
        }
        let template = "{bar:40} {percent:>3} %  {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
        let style = ProgressStyle::with_template(template).expect("a constant template");
        Self::Bar(ProgressBar::new(total_bytes).with_style(style))
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
