//! `feedrail target set-qos`: shows or sets limits of a subsystem's hosts and namespaces.

use anyhow::{Result, bail};
use clap::Args;
use nvme_proto::Nqn;
use serde_json::{Value, json};

use super::{RpcClient, SocketArgs, items};
use crate::options::{Format, Output};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail target set-qos nqn.2026-01.org.example:shards --socket /run/feedrail/target.sock
  feedrail target set-qos nqn.2026-01.org.example:shards --each-host --r-mbytes-per-sec 500 \\
      --socket /run/feedrail/target.sock
  feedrail target set-qos nqn.2026-01.org.example:shards --host $(cat /etc/nvme/hostnqn) \\
      --rw-ios-per-sec 20000 --rw-mbytes-per-sec 0 --socket /run/feedrail/target.sock
  feedrail target set-qos nqn.2026-01.org.example:shards --nsid 3 --w-mbytes-per-sec 100 \\
      --socket /run/feedrail/target.sock";

/// Defines the options of limits, and their keys in parameters and results, with the heading of a
/// table and the text of a limit.
macro_rules! limits {
    ($($(#[$about:meta])* $key:ident: $metavar:literal, $heading:literal, $unit:literal;)*) => {
        #[derive(Args, Debug)]
        struct GivenLimits {$(
            $(#[$about])*
            #[arg(long, value_name = $metavar, requires = "limited")]
            $key: Option<u64>,
        )*}

        const LIMITS: &[(&str, &str, &str)] = &[$((stringify!($key), $heading, $unit)),*];

        impl GivenLimits {
            fn by_key(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let limits = [$((stringify!($key), self.$key)),*];
                limits.into_iter().filter_map(|(key, limit)| Some((key, limit?)))
            }
        }
    };
}

limits! {
    /// Read, Write and Compare commands per second, a multiple of 1000
    rw_ios_per_sec: "COUNT", "IOPS", "IOPS";
    /// MiB per second that are read and written
    rw_mbytes_per_sec: "MIB", "MiB/s", "MiB/s";
    /// MiB per second that are read
    r_mbytes_per_sec: "MIB", "Read MiB/s", "MiB/s read";
    /// MiB per second that are written
    w_mbytes_per_sec: "MIB", "Write MiB/s", "MiB/s written";
}

/// Shows or sets limits of I/O commands and bytes per second of hosts and namespaces
///
/// Connected hosts stay connected. Limits that are not given stay, and 0 is no limit. A command
/// waits until it is within the limits of its host and of its namespace; Read, Write and Compare
/// commands count.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct SetQos {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Host to limit, for all of its queues together
    #[arg(long, value_name = "HOSTNQN", group = "limited")]
    host: Option<Nqn>,
    /// Limit each host that has no limits of its own
    #[arg(long, group = "limited")]
    each_host: bool,
    /// Namespace (NSID) to limit, for all hosts together
    #[arg(long, group = "limited")]
    nsid: Option<u32>,
    #[command(flatten)]
    limits: GivenLimits,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    socket: SocketArgs,
}

impl SetQos {
    pub(super) fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let nqn = self.subnqn.as_str();
        let (method, mut params) = match (&self.host, self.nsid) {
            (Some(host), _) => {
                ("feedrail_set_host_qos", json!({ "nqn": nqn, "host": host.as_str() }))
            }
            (None, Some(nsid)) => {
                ("bdev_set_qos_limit", json!({ "name": format!("{nqn}/{nsid}") }))
            }
            (None, None) if self.each_host => ("feedrail_set_host_qos", json!({ "nqn": nqn })),
            (None, None) => return self.show(&mut target),
        };
        if self.limits.by_key().next().is_none() {
            bail!("give a limit, such as --rw-ios-per-sec 20000; 0 is no limit");
        }
        self.limits.by_key().for_each(|(key, limit)| params[key] = limit.into());
        target.call(method, params).map(drop)
    }

    fn show(&self, target: &mut RpcClient) -> Result<()> {
        let params = json!({ "nqn": self.subnqn.as_str() });
        let subsystems = target.call("nvmf_get_subsystems", params)?;
        let subsystem = &subsystems[0];
        output::print(&match self.output.output_format {
            Format::Json => output::json(&limits_of(subsystem)),
            Format::Normal => table(subsystem),
        })
    }
}

/// Limits in the description of a subsystem.
fn limits_of(subsystem: &Value) -> Value {
    let limited = |list: &Value, key: &str| -> Value {
        let limited = items(list).filter(|one| !one["limits"].is_null());
        limited.map(|one| json!({ key: one[key], "limits": one["limits"] })).collect()
    };
    json!({
        "each_host": subsystem["each_host"],
        "hosts": limited(&subsystem["hosts"], "nqn"),
        "namespaces": limited(&subsystem["namespaces"], "nsid"),
    })
}

fn table(subsystem: &Value) -> String {
    let described = limits_of(subsystem);
    let row = |of: String, limits: &Value| {
        let limit = |key| limits[key].as_u64().map_or_else(|| "-".to_owned(), |of| of.to_string());
        [of].into_iter().chain(LIMITS.iter().map(|(key, ..)| limit(*key))).collect::<Vec<_>>()
    };
    let mut rows = vec![row("each host".to_owned(), &described["each_host"])];
    rows.extend(items(&described["hosts"]).map(|host| {
        let nqn = output::printable(host["nqn"].as_str().unwrap_or_default());
        row(format!("host {nqn}"), &host["limits"])
    }));
    rows.extend(
        items(&described["namespaces"])
            .map(|one| row(format!("namespace {}", one["nsid"]), &one["limits"])),
    );
    let headings: Vec<_> =
        ["Limits of"].into_iter().chain(LIMITS.iter().map(|(_, heading, _)| *heading)).collect();
    output::table(&headings, &rows)
}

/// Limits in one cell of a table, those of 0 left out.
pub(super) fn in_words(limits: &Value) -> String {
    let word = |(key, _, unit): &(&str, &str, &str)| {
        let limit = limits[*key].as_u64().filter(|limit| *limit > 0)?;
        Some(format!("{limit} {unit}"))
    };
    let words: Vec<_> = LIMITS.iter().filter_map(word).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_shown_by_whom_they_are_of() {
        let subsystem = json!({
            "each_host": { "rw_ios_per_sec": 0, "rw_mbytes_per_sec": 0, "r_mbytes_per_sec": 500,
                           "w_mbytes_per_sec": 0 },
            "hosts": [
                { "nqn": "nqn.h", "limits": { "rw_ios_per_sec": 2000, "r_mbytes_per_sec": 0 } },
                { "nqn": "nqn.i" },
            ],
            "namespaces": [{ "nsid": 3, "limits": { "w_mbytes_per_sec": 7 } }, { "nsid": 4 }],
        });
        let shown = table(&subsystem);
        let cells = |line: &str| -> Vec<String> {
            let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
            cells.map(str::to_owned).collect()
        };
        let lines: Vec<_> = shown.lines().map(cells).collect();
        assert_eq!(lines[0], ["Limits of", "IOPS", "MiB/s", "Read MiB/s", "Write MiB/s"]);
        assert_eq!(lines[1], ["each host", "0", "0", "500", "0"]);
        assert_eq!(lines[2], ["host nqn.h", "2000", "-", "0", "-"]);
        assert_eq!(lines[3], ["namespace 3", "-", "-", "-", "7"]);
        assert_eq!(lines.len(), 4, "{shown}");
        assert_eq!(in_words(&subsystem["each_host"]), "500 MiB/s read");
        assert_eq!(in_words(&Value::Null), "-");
    }
}
