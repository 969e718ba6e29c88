//! The tables of `feedrail target top` on a terminal.

use std::time::Instant;

use anyhow::{Context as _, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Block, Row, Table};
use ratatui::{DefaultTerminal, Frame};

use super::{HEADINGS, HOST_HEADINGS, Report, SIGNAL_INTERVAL};
use crate::clock;
use crate::interrupt::Interrupt;

/// Terminal on its alternate screen, restored on drop.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    pub(super) fn open() -> Result<Self> {
        let mut terminal = ratatui::try_init().context("cannot draw in this terminal")?;
        let first = |frame: &mut Frame<'_>| {
            frame
                .render_widget(Line::raw("Waiting for the first interval (q: quit)"), frame.area());
        };
        terminal.draw(first)?;
        Ok(Self(terminal))
    }

    /// Waits for the next sample. Returns false if a key or a signal ends the program.
    pub(super) fn wait(&mut self, until: Instant, interrupt: &Interrupt) -> Result<bool> {
        loop {
            if interrupt.check().is_err() {
                return Ok(false);
            }
            let left = until.saturating_duration_since(clock::now());
            if event::poll(left.min(SIGNAL_INTERVAL))? {
                if is_quit(&event::read()?) {
                    return Ok(false);
                }
            } else if left.is_zero() {
                return Ok(true);
            }
        }
    }

    pub(super) fn draw(&mut self, report: &Report) -> Result<()> {
        self.0.draw(|frame| render(frame, report))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Whether a key ends the program. In raw mode Ctrl-C is a key and raises no signal.
fn is_quit(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
        return false;
    };
    match code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

fn render(frame: &mut Frame<'_>, report: &Report) {
    let namespaces = report.namespace_rows();
    let hosts = report.host_rows();
    // The title, the headings, and the rows.
    let wanted = |rows: usize| Constraint::Max(u16::try_from(rows + 3).unwrap_or(u16::MAX));
    let areas = Layout::vertical([Constraint::Fill(2), wanted(hosts.len()), Constraint::Length(1)]);
    let [top, middle, bottom] = areas.areas(frame.area());
    let title = format!("Namespaces ({})", namespaces.len());
    frame.render_widget(table(title, &HEADINGS, &namespaces), top);
    let title = format!("Hosts ({} controllers)", hosts.len());
    frame.render_widget(table(title, &HOST_HEADINGS, &hosts), middle);
    let line = format!("Means of the last {:.1} s. q: quit", report.seconds);
    frame.render_widget(Line::raw(line).dim(), bottom);
}

/// Creates a table whose columns are as wide as their widest cell, or narrower on a narrow
/// terminal.
fn table<'a>(title: String, headings: &[&'a str], rows: &'a [Vec<String>]) -> Table<'a> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        let widest = cells.chain([headings[column].len()]).max().unwrap_or_default();
        Constraint::Max(u16::try_from(widest).unwrap_or(u16::MAX))
    };
    let widths: Vec<_> = (0..headings.len()).map(width).collect();
    let heading = Row::new(headings.to_vec()).style(Style::new().bold());
    let rows = rows.iter().map(|row| Row::new(row.iter().map(String::as_str)));
    Table::new(rows, widths).header(heading).column_spacing(2).block(Block::new().title(title))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::super::{ConnectedHost, IoSample};
    use super::*;

    #[test]
    fn both_tables_fit_a_small_terminal() {
        let bdevs: Vec<_> = (1..=100)
            .map(|nsid| json!({ "name": "shard", "nqn": "nqn.a", "nsid": nsid }))
            .collect();
        let sample = IoSample::of(&json!({ "ticks": 7, "bdevs": bdevs }));
        let controller = json!({
            "hostnqn": "nqn.host", "peer": "192.0.2.1:7", "cntlid": 1, "num_io_qpairs": 4,
        });
        let report = Report {
            seconds: 1.0,
            namespaces: sample.rates_since(&sample),
            hosts: vec![ConnectedHost { nqn: "nqn.a".into(), controller }],
        };
        let mut terminal = Terminal::new(TestBackend::new(100, 12)).expect("a terminal");
        terminal.draw(|frame| render(frame, &report)).expect("drawn");
        let shown = terminal.backend().to_string();
        for expected in
            ["Namespaces (100)", "Reads/s", "shard", "nqn.host", "192.0.2.1:7", "q: quit"]
        {
            assert!(shown.contains(expected), "{expected} is not in\n{shown}");
        }
        for (width, height) in [(1, 1), (20, 3)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
            terminal.draw(|frame| render(frame, &report)).expect("drawn");
        }
    }
}
