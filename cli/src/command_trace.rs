//! Traces of commands, in the Trace Event Format that Perfetto and Chrome read.
//!
//! A file contains the commands twice: as trace events, and as records, from which `merge-traces`
//! combines those of host and target.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write, stdout};
use std::path::Path;

use anyhow::{Context as _, Result};
use feedrail_initiator::{Host, MonotonicTime, SentCommand};
use nvme_proto::NvmOpcode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clock;
use crate::size::human;

/// Commands that a host and a target have recorded.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct PerfettoTrace {
    #[serde(default)]
    pub(crate) host: Vec<CommandAtHost>,
    #[serde(default)]
    pub(crate) target: Vec<CommandAtTarget>,
}

/// Identity of a command: queue and command identifier, and what it reads or writes.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct CommandId {
    pub(crate) hostnqn: Option<String>,
    pub(crate) subnqn: Option<String>,
    pub(crate) cntlid: u16,
    pub(crate) qid: u16,
    pub(crate) cid: u16,
    pub(crate) nsid: u32,
    pub(crate) opcode: String,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
}

/// Command as a host recorded it. Times are nanoseconds since 1970.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct CommandAtHost {
    #[serde(flatten)]
    pub(crate) id: CommandId,
    pub(crate) succeeded: bool,
    /// When the caller submitted the read or write that the command belongs to.
    pub(crate) submitted_ns: u64,
    pub(crate) sent_ns: u64,
    pub(crate) answered_ns: u64,
}

/// Command as a target recorded it: time of its arrival since 1970, and durations, in nanoseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct CommandAtTarget {
    #[serde(flatten)]
    pub(crate) id: CommandId,
    pub(crate) succeeded: bool,
    pub(crate) received_ns: u64,
    pub(crate) buffer_ns: u64,
    pub(crate) fetch_ns: u64,
    pub(crate) storage_ns: u64,
}

#[derive(Deserialize, Serialize)]
struct TraceFile {
    #[serde(rename = "traceEvents")]
    events: Vec<Value>,
    #[serde(rename = "displayTimeUnit")]
    unit: String,
    feedrail: PerfettoTrace,
}

/// Time slice of a command on a track, with the slices nested in it.
struct TraceSlice {
    name: String,
    from_ns: u64,
    to_ns: u64,
    args: Value,
    parts: Vec<TraceSlice>,
}

impl PerfettoTrace {
    /// Writes the trace to a file, or to standard output if the path is `-`.
    pub(crate) fn write(self, path: &Path) -> Result<()> {
        if path == Path::new("-") {
            return self.write_to(&mut BufWriter::new(stdout().lock()));
        }
        let file = File::create(path).with_context(|| path.display().to_string())?;
        self.write_to(&mut BufWriter::new(file)).with_context(|| path.display().to_string())
    }

    fn write_to(self, to: &mut impl Write) -> Result<()> {
        let (events, unit) = (self.events(), "ns".to_owned());
        serde_json::to_writer(&mut *to, &TraceFile { events, unit, feedrail: self })?;
        writeln!(to)?;
        Ok(to.flush()?)
    }

    /// Reads a file that [`Self::write`] wrote.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let file: TraceFile = serde_json::from_reader(BufReader::new(file))
            .with_context(|| format!("{} is no trace of commands", path.display()))?;
        Ok(file.feedrail)
    }

    /// Number of commands that both sides recorded, and the nanoseconds by which the target's clock
    /// is ahead of the host's.
    pub(crate) fn matches(&self) -> (usize, i64) {
        let matches = self.target_by_host();
        (matches.iter().flatten().count(), self.clock_difference(&matches))
    }

    /// Returns the trace events, on one track for each command identifier of a queue. The target's
    /// slice of a command is nested in the host's.
    fn events(&self) -> Vec<Value> {
        let by_host = self.target_by_host();
        let ahead = self.clock_difference(&by_host);
        let mut slices = Vec::with_capacity(self.host.len() + self.target.len());
        let mut is_taken = vec![false; self.target.len()];
        for (command, seen) in self.host.iter().zip(&by_host) {
            let mut slice = command.slice();
            if let Some(seen) = *seen {
                is_taken[seen] = true;
                slice.parts.push(self.target[seen].slice(ahead).within(&slice));
            }
            slices.push((&command.id, slice));
        }
        let alone = self.target.iter().zip(is_taken).filter(|(_, is_taken)| !is_taken);
        slices.extend(alone.map(|(command, _)| (&command.id, command.slice(ahead))));
        // Times are relative to the first, since an f64 cannot hold nanoseconds since 1970 exactly.
        let origin = slices.iter().map(|(_, slice)| slice.from_ns).min().unwrap_or(0);
        let mut events = Vec::with_capacity(4 * slices.len());
        for (id, slice) in slices {
            slice.add_events(&id.track(), origin, &mut events);
        }
        events
    }

    /// Returns the index of the target's record for each command of the host, matched by
    /// identifiers and byte range. Where several match, each record of the side with fewer takes
    /// the one nearest in time.
    fn target_by_host(&self) -> Vec<Option<usize>> {
        let mut by_id = BTreeMap::<CommandId, [Vec<usize>; 2]>::new();
        for (number, command) in self.host.iter().enumerate() {
            by_id.entry(command.id.of_both()).or_default()[0].push(number);
        }
        for (number, command) in self.target.iter().enumerate() {
            by_id.entry(command.id.of_both()).or_default()[1].push(number);
        }
        let mut found = vec![None; self.host.len()];
        for [hosts, targets] in by_id.into_values() {
            let distance = |host: usize, target: usize| {
                self.host[host].middle_ns().abs_diff(self.target[target].middle_ns())
            };
            match targets.len() <= hosts.len() {
                true => pair(targets, hosts, |target, host| distance(host, target))
                    .for_each(|(target, host)| found[host] = Some(target)),
                false => pair(hosts, targets, distance)
                    .for_each(|(host, target)| found[host] = Some(target)),
            }
        }
        found
    }

    /// Nanoseconds by which the target's clock is ahead of the host's. A command arrives after it
    /// was sent and ends before its completion arrives; of the range that this allows the middle is
    /// taken.
    fn clock_difference(&self, by_host: &[Option<usize>]) -> i64 {
        let pairs = self.host.iter().zip(by_host);
        let pairs = pairs.filter_map(|(host, seen)| Some((host, &self.target[(*seen)?])));
        let bounds = pairs.map(|(host, target)| {
            let most = signed(target.received_ns) - signed(host.sent_ns);
            (signed(target.ended_ns()) - signed(host.answered_ns), most)
        });
        bounds
            .reduce(|(a, b), (least, most)| (a.max(least), b.min(most)))
            // Host and target on one machine have the same clock, so the range contains 0.
            .map_or(
                0,
                |(least, most)| if least <= 0 && 0 <= most { 0 } else { least.midpoint(most) },
            )
    }
}

impl CommandId {
    fn name(&self) -> String {
        match self.length_bytes {
            0 => self.opcode.clone(),
            length => format!("{} {}", self.opcode, human(length)),
        }
    }

    /// Returns the identifier without the NQNs, which only one side may have recorded.
    fn of_both(&self) -> Self {
        Self { hostnqn: None, subnqn: None, ..self.clone() }
    }

    /// Name of the track of this queue and command identifier.
    fn track(&self) -> String {
        let host = self.hostnqn.as_deref().unwrap_or("a host that is gone");
        format!("{host} controller {} queue {} command {}", self.cntlid, self.qid, self.cid)
    }
}

impl CommandAtHost {
    fn middle_ns(&self) -> u64 {
        u64::midpoint(self.sent_ns, self.answered_ns)
    }

    /// Ends the trace of a host and returns its commands; none if no trace was started.
    pub(crate) fn of_host(host: &Host) -> Vec<Self> {
        let Some(trace) = host.take_trace() else { return Vec::new() };
        let origin = clock::unix_nanos().saturating_sub(Host::now().as_nanos());
        let unix = |time: MonotonicTime| origin.saturating_add(time.as_nanos());
        let hostnqn = Some(host.nqn().to_string());
        let command = |command: SentCommand| Self {
            id: CommandId {
                hostnqn: hostnqn.clone(),
                subnqn: Some(command.subnqn.to_string()),
                cntlid: command.cntlid.0,
                qid: command.qid.0,
                cid: command.cid.0,
                nsid: command.nsid.0,
                opcode: if command.opcode == NvmOpcode::WRITE { "write" } else { "read" }.into(),
                offset_bytes: command.offset_bytes,
                length_bytes: command.length_bytes,
            },
            succeeded: command.status.is_success(),
            submitted_ns: unix(command.submitted),
            sent_ns: unix(command.sent),
            answered_ns: unix(command.answered),
        };
        trace.commands.into_iter().map(command).collect()
    }

    fn slice(&self) -> TraceSlice {
        let from_ns = self.submitted_ns.min(self.sent_ns);
        // A file that was edited may contain times that run backwards.
        let to_ns = self.answered_ns.max(from_ns);
        let parts = vec![TraceSlice::new("queued", from_ns, self.sent_ns)];
        let args = json!(self);
        TraceSlice { name: self.id.name(), from_ns, to_ns, args, parts }
    }
}

impl CommandAtTarget {
    fn ended_ns(&self) -> u64 {
        [self.buffer_ns, self.fetch_ns, self.storage_ns]
            .into_iter()
            .fold(self.received_ns, u64::saturating_add)
    }

    fn middle_ns(&self) -> u64 {
        u64::midpoint(self.received_ns, self.ended_ns())
    }

    fn slice(&self, ahead_ns: i64) -> TraceSlice {
        let from_ns = self.received_ns.saturating_add_signed(-ahead_ns);
        let (mut at, mut parts) = (from_ns, Vec::new());
        for (name, nanos) in
            [("buffer", self.buffer_ns), ("fetch", self.fetch_ns), ("storage", self.storage_ns)]
        {
            parts.push(TraceSlice::new(name, at, at.saturating_add(nanos)));
            at = at.saturating_add(nanos);
        }
        let name = format!("target: {}", self.id.name());
        TraceSlice { name, from_ns, to_ns: at, args: json!(self), parts }
    }
}

impl TraceSlice {
    fn new(name: &str, from_ns: u64, to_ns: u64) -> Self {
        Self { name: name.to_owned(), from_ns, to_ns, args: json!({}), parts: Vec::new() }
    }

    /// Clamps the slice to `outer`, since the clocks of two machines differ.
    fn within(mut self, outer: &Self) -> Self {
        self.from_ns = self.from_ns.clamp(outer.from_ns, outer.to_ns);
        self.to_ns = self.to_ns.clamp(self.from_ns, outer.to_ns);
        let parts = std::mem::take(&mut self.parts);
        self.parts = parts.into_iter().map(|part| part.within(&self)).collect();
        self
    }

    /// Adds the begin and end events of the slice, and those of nested slices longer than 0 ns.
    fn add_events(&self, track: &str, origin_ns: u64, events: &mut Vec<Value>) {
        let event = |phase: &str, at_ns: u64, args: Option<&Value>| {
            json!({
                "ph": phase, "cat": "command", "name": self.name, "pid": 1, "tid": 1,
                "id": track, "ts": at_ns.saturating_sub(origin_ns) as f64 / 1e3,
                "args": args.unwrap_or(&Value::Null),
            })
        };
        events.push(event("b", self.from_ns, Some(&self.args)));
        for part in self.parts.iter().filter(|part| part.from_ns < part.to_ns) {
            part.add_events(track, origin_ns, events);
        }
        events.push(event("e", self.to_ns, None));
    }
}

/// Pairs each index of `few` with the nearest index of `many` that is still free.
fn pair(
    few: Vec<usize>,
    mut many: Vec<usize>,
    distance: impl Fn(usize, usize) -> u64,
) -> impl Iterator<Item = (usize, usize)> {
    few.into_iter().filter_map(move |one| {
        let nearest = (0..many.len()).min_by_key(|&at| distance(one, many[at]))?;
        Some((one, many.swap_remove(nearest)))
    })
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(cid: u16, offset_bytes: u64) -> CommandId {
        CommandId {
            hostnqn: Some("nqn.2014-08.org.example:host".into()),
            subnqn: None,
            cntlid: 3,
            qid: 1,
            cid,
            nsid: 1,
            opcode: "read".into(),
            offset_bytes,
            length_bytes: 4096,
        }
    }

    fn host(id: CommandId, submitted_ns: u64, sent_ns: u64, answered_ns: u64) -> CommandAtHost {
        CommandAtHost { id, succeeded: true, submitted_ns, sent_ns, answered_ns }
    }

    fn target(id: CommandId, received_ns: u64, fetch_ns: u64, storage_ns: u64) -> CommandAtTarget {
        CommandAtTarget { id, succeeded: true, received_ns, buffer_ns: 0, fetch_ns, storage_ns }
    }

    fn lines(trace: &PerfettoTrace) -> Vec<String> {
        let line = |event: &Value| {
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            format!("{} {} {}", text("ph"), text("name"), event["ts"])
        };
        trace.events().iter().map(line).collect()
    }

    #[test]
    fn what_a_target_saw_is_a_part_of_the_hosts_command() {
        let host = vec![host(id(7, 0), 1_000_000, 1_002_000, 1_050_000)];
        let target = vec![target(id(7, 0), 1_010_000, 0, 30_500)];
        let trace = PerfettoTrace { host, target };
        assert_eq!(trace.matches(), (1, 0));
        let expected = [
            "b read 4.00 KiB 0.0",
            "b queued 0.0",
            "e queued 2.0",
            "b target: read 4.00 KiB 10.0",
            "b storage 10.0",
            "e storage 40.5",
            "e target: read 4.00 KiB 40.5",
            "e read 4.00 KiB 50.0",
        ];
        assert_eq!(lines(&trace), expected);
    }

    #[test]
    fn commands_of_one_place_are_told_apart() {
        let host = vec![
            host(id(7, 0), 100, 100, 200),
            host(id(7, 0), 300, 300, 400),
            host(id(7, 4096), 500, 500, 600),
        ];
        let target = vec![
            target(id(7, 4096), 520, 0, 10),
            target(id(7, 0), 320, 0, 10),
            target(id(7, 8192), 720, 0, 10),
        ];
        let trace = PerfettoTrace { host, target };
        assert_eq!(trace.target_by_host(), [None, Some(1), Some(0)]);
        assert_eq!(trace.matches(), (2, 0));
        // One that only the target has is there by itself.
        assert_eq!(lines(&trace).last().unwrap(), "e target: read 4.00 KiB 0.63");
    }

    #[test]
    fn the_clocks_of_two_machines_are_brought_together() {
        let ahead = 5_000_000;
        let commands = [(0, 100, 160), (4096, 1_000, 1_040), (8192, 2_000, 2_090)];
        let (mut hosts, mut targets) = (Vec::new(), Vec::new());
        for (offset, sent, answered) in commands {
            hosts.push(host(id(1, offset), sent, sent, answered));
            targets.push(target(id(1, offset), ahead + sent + 10, 0, answered - sent - 20));
        }
        let trace = PerfettoTrace { host: hosts, target: targets };
        let (count, difference) = trace.matches();
        assert_eq!(count, 3);
        assert!(difference.abs_diff(ahead as i64) <= 10, "{difference}");
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let trace =
            || PerfettoTrace { host: vec![host(id(7, 0), 1, 2, 3)], ..PerfettoTrace::default() };
        trace().write(&path).unwrap();
        let read = PerfettoTrace::read(&path).unwrap();
        assert_eq!(lines(&read), lines(&trace()));
        // One whose times run backwards is shown somehow.
        let host = vec![host(id(7, 0), u64::MAX, u64::MAX, 0)];
        let trace = PerfettoTrace { host, target: vec![target(id(7, 0), 5, u64::MAX, 1)] };
        assert_eq!(lines(&trace).len() % 2, 0);
        std::fs::write(&path, "{}").unwrap();
        let error = format!("{:#}", PerfettoTrace::read(&path).unwrap_err());
        assert!(error.contains("is no trace of commands"), "{error}");
    }
}
