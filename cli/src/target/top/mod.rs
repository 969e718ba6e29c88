//! `feedrail target top`: rates of a target's namespaces, and its connected hosts.

mod rates;
mod screen;

use std::io::IsTerminal as _;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use self::rates::{HEADINGS, IoSample, NamespaceRates};
use self::screen::Screen;
use super::set_qos::in_words;
use super::{RpcClient, SocketArgs, items};
use crate::interrupt::Interrupt;
use crate::options::{Format, Output};
use crate::{clock, output};

const HOST_HEADINGS: [&str; 8] =
    ["Host", "Address", "Subsystem", "Controller", "I/O queues", "Limits", "Throttled", "Waited"];

/// Interval at which the wait for the next sample checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  feedrail target top --socket /run/feedrail/target.sock
  feedrail target top --iterations 1 -o json --socket /run/feedrail/target.sock";

/// Shows the I/O rates of a target's namespaces, the busiest first, and its connected hosts
///
/// The columns Throttled and Waited count the commands that had to wait for the limits of their
/// host, and the time that they waited, since the host connected.
///
/// In a terminal the table is redrawn each interval until q is pressed. Otherwise one table, or
/// one JSON object on a line of its own, is printed after each interval.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Top {
    /// Interval in seconds between two samples of the counters
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// Number of intervals after which the command ends
    #[arg(long, value_name = "COUNT")]
    iterations: Option<NonZeroU64>,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    output: Output,
}

/// Rates and hosts of one interval.
struct Report {
    seconds: f64,
    namespaces: Vec<NamespaceRates>,
    hosts: Vec<ConnectedHost>,
}

/// Controller of a host, as the target describes it, with the NQN of the subsystem.
struct ConnectedHost {
    nqn: String,
    controller: Value,
}

impl Top {
    pub(super) fn run(&self) -> Result<()> {
        let whole = Duration::try_from_secs_f64(self.interval).unwrap_or_default();
        ensure!(
            (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&whole),
            "--interval: give 0.1 to 3600 seconds"
        );
        output::check_stdout()?;
        let interrupt = Interrupt::install()?;
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let mut earlier = sample(&mut target)?;
        let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        let draws = is_terminal && self.output.output_format == Format::Normal;
        let mut screen = if draws { Some(Screen::open()?) } else { None };
        let mut until = clock::now();
        for _ in 0..self.iterations.map_or(u64::MAX, NonZeroU64::get) {
            until += whole;
            let goes_on = match &mut screen {
                Some(screen) => screen.wait(until, &interrupt)?,
                None => wait(until, &interrupt),
            };
            if !goes_on {
                break;
            }
            let now = sample(&mut target)?;
            let report = Report {
                seconds: now.seconds_since(&earlier),
                namespaces: now.rates_since(&earlier),
                hosts: hosts(&mut target)?,
            };
            earlier = now;
            match &mut screen {
                Some(screen) => screen.draw(&report)?,
                None => self.print(&report)?,
            }
        }
        Ok(())
    }

    fn print(&self, report: &Report) -> Result<()> {
        output::print(&match self.output.output_format {
            Format::Json => format!("{}\n", report.to_json()),
            Format::Normal => report.to_text(),
        })
    }
}

fn sample(target: &mut RpcClient) -> Result<IoSample> {
    Ok(IoSample::of(&target.call("bdev_get_iostat", json!({}))?))
}

fn hosts(target: &mut RpcClient) -> Result<Vec<ConnectedHost>> {
    let mut hosts = Vec::new();
    for subsystem in items(&target.call("nvmf_get_subsystems", json!({}))?) {
        let nqn = subsystem["nqn"].as_str().unwrap_or_default();
        let controllers = target.call("nvmf_subsystem_get_controllers", json!({ "nqn": nqn }))?;
        let host = |controller: &Value| ConnectedHost {
            nqn: nqn.to_owned(),
            controller: controller.clone(),
        };
        hosts.extend(items(&controllers).map(host));
    }
    Ok(hosts)
}

/// Waits without a terminal. Returns false if a signal ends the wait.
fn wait(until: Instant, interrupt: &Interrupt) -> bool {
    loop {
        if interrupt.check().is_err() {
            return false;
        }
        match until.checked_duration_since(clock::now()) {
            Some(left) if !left.is_zero() => clock::sleep(left.min(SIGNAL_INTERVAL)),
            _ => return true,
        }
    }
}

impl ConnectedHost {
    fn row(&self) -> Vec<String> {
        let text = |value: &Value| output::printable(value.as_str().unwrap_or_default());
        vec![
            text(&self.controller["hostnqn"]),
            text(&self.controller["peer"]),
            output::printable(&self.nqn),
            self.controller["cntlid"].to_string(),
            self.controller["num_io_qpairs"].to_string(),
            in_words(&self.controller["limits"]),
            self.controller["throttled_commands"].as_u64().unwrap_or_default().to_string(),
            format!("{:.1} s", self.controller["throttled_us"].as_f64().unwrap_or_default() / 1e6),
        ]
    }

    fn to_json(&self) -> Value {
        let mut described = self.controller.clone();
        described["nqn"] = self.nqn.as_str().into();
        described
    }
}

impl Report {
    fn namespace_rows(&self) -> Vec<Vec<String>> {
        self.namespaces.iter().map(NamespaceRates::row).collect()
    }

    fn host_rows(&self) -> Vec<Vec<String>> {
        self.hosts.iter().map(ConnectedHost::row).collect()
    }

    fn to_text(&self) -> String {
        let namespaces = output::table(&HEADINGS, &self.namespace_rows());
        format!("{namespaces}\n{}\n", output::table(&HOST_HEADINGS, &self.host_rows()))
    }

    fn to_json(&self) -> Value {
        json!({
            "interval_seconds": self.seconds,
            "namespaces": self.namespaces.iter().map(NamespaceRates::to_json).collect::<Value>(),
            "hosts": self.hosts.iter().map(ConnectedHost::to_json).collect::<Value>(),
        })
    }
}
