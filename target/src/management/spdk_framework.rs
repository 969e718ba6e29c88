//! Methods of SPDK about the process itself: log, version, threads, transports.

use std::fs;

use serde_json::{Value, json};
use tracing::level_filters::LevelFilter;

use super::rpc::{NANOS_PER_SECOND, NoParams, Params, RpcError, params, read};
use crate::limits::{ADMIN_QUEUE_ENTRIES, Limits, MAX_SUBSYSTEMS};
use crate::log_level::LogLevel;

/// Log levels of SPDK and of this target. SPDK's notice and info are both info here.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("DISABLED", LevelFilter::OFF),
    ("ERROR", LevelFilter::ERROR),
    ("WARNING", LevelFilter::WARN),
    ("NOTICE", LevelFilter::INFO),
    ("INFO", LevelFilter::INFO),
    ("DEBUG", LevelFilter::DEBUG),
];

/// Log flags: modules whose debug messages can be switched on.
const LOG_FLAGS: [&str; 4] = ["feedrail_target", "nvme_proto", "rdma", "roce_proto"];

/// Methods in SPDK's saved configurations that concern parts which this target does not have. They
/// succeed without effect.
const WITHOUT_EFFECT: [&str; 18] = [
    "accel_assign_opc",
    "accel_set_driver",
    "accel_set_options",
    "bdev_examine",
    "bdev_iscsi_set_options",
    "bdev_nvme_set_hotplug",
    "bdev_nvme_set_options",
    "bdev_raid_set_options",
    "bdev_set_options",
    "bdev_wait_for_examine",
    "framework_set_scheduler",
    "fsdev_set_opts",
    "iobuf_set_options",
    "iscsi_set_options",
    "keyring_linux_set_options",
    "nvmf_set_crdt",
    "sock_impl_set_options",
    "sock_set_default_impl",
];

params! {
    LogLevelParams { level: String }

    LogFlagParams { flag: String }

    TransportFilter {
        trtype: Option<String>,
        #[serde(rename = "tgt_name")]
        _tgt_name: Option<String>,
    }

    MaxSubsystems { max_subsystems: usize }
}

pub(super) fn names_without_effect() -> impl Iterator<Item = &'static str> {
    WITHOUT_EFFECT.into_iter()
}

/// Returns the result of a method without effect, and logs the call; `None` for other methods.
pub(super) fn without_effect(method: &str) -> Option<Value> {
    let name = WITHOUT_EFFECT.iter().find(|name| **name == method)?;
    tracing::info!(method = name, "call without effect: it concerns a part of SPDK");
    Some(true.into())
}

pub(super) fn version(NoParams {}: NoParams) -> Result<Value, RpcError> {
    let number = |text: &str| text.parse::<u32>().unwrap_or_default();
    let suffix = match env!("CARGO_PKG_VERSION_PRE") {
        "" => String::new(),
        suffix => format!("-{suffix}"),
    };
    Ok(json!({
        "version": concat!("Feedrail v", env!("CARGO_PKG_VERSION")),
        "fields": {
            "major": number(env!("CARGO_PKG_VERSION_MAJOR")),
            "minor": number(env!("CARGO_PKG_VERSION_MINOR")),
            "patch": number(env!("CARGO_PKG_VERSION_PATCH")),
            "suffix": suffix,
        },
    }))
}

/// Returns immediately, since a target that responds has started.
pub(super) fn wait_init(NoParams {}: NoParams) -> Result<Value, RpcError> {
    Ok(true.into())
}

/// Describes RDMA, the only transport, with its limits. A filter for another one is an error.
pub(super) fn transports(params: Params, limits: &Limits) -> Result<Value, RpcError> {
    let filter: TransportFilter = read(params)?;
    if let Some(other) = filter.trtype.filter(|trtype| !trtype.eq_ignore_ascii_case("rdma")) {
        let message = format!("trtype: there is no transport {other:?}, but RDMA");
        return Err(RpcError::invalid_params(message));
    }
    Ok(json!([{
        "trtype": "RDMA",
        "max_queue_depth": limits.queue_depth,
        "max_io_qpairs_per_ctrlr": limits.io_queues,
        "in_capsule_data_size": limits.in_capsule_data_bytes,
        "max_io_size": limits.max_transfer_bytes,
        "max_aq_depth": ADMIN_QUEUE_ENTRIES,
        "dif_insert_or_strip": false,
        "zcopy": false,
        "no_srq": false,
    }]))
}

/// Checks that the number is within the target's fixed limit; has no other effect.
pub(super) fn set_max_subsystems(params: Params) -> Result<Value, RpcError> {
    let MaxSubsystems { max_subsystems } = read(params)?;
    match max_subsystems {
        1..=MAX_SUBSYSTEMS => Ok(true.into()),
        _ => Err(RpcError::invalid_params(format_args!(
            "max_subsystems: {max_subsystems} is not a number from 1 to {MAX_SUBSYSTEMS}"
        ))),
    }
}

/// Describes the threads that serve hosts, one per core, with times in nanoseconds.
pub(super) fn reactors(NoParams {}: NoParams) -> Result<Value, RpcError> {
    let tasks = fs::read_dir("/proc/self/task").map_err(RpcError::internal)?;
    let mut reactors: Vec<_> = tasks
        .filter_map(|task| Reactor::read(task.ok()?.file_name().to_str()?.parse().ok()?))
        .collect();
    reactors.sort_by_key(|reactor| reactor.index);
    Ok(json!({
        "tick_rate": NANOS_PER_SECOND,
        "pid": std::process::id(),
        "reactors": reactors.iter().map(Reactor::describe).collect::<Value>(),
    }))
}

/// Statistics of a thread that serves hosts, from `/proc` (proc_pid_stat(5), `schedstat`).
struct Reactor {
    index: u32,
    tid: u32,
    name: String,
    cpus: String,
    busy_nanos: u64,
    elapsed_nanos: u64,
}

impl Reactor {
    /// Reads the statistics of a thread; `None` if it is no core's thread or has ended.
    fn read(tid: u32) -> Option<Self> {
        let file = |name: &str| fs::read_to_string(format!("/proc/self/task/{tid}/{name}")).ok();
        let name = file("comm")?.trim_end().to_owned();
        let index = name.strip_prefix("feedrail-")?.parse().ok()?;
        let busy_nanos = file("schedstat")?.split_whitespace().next()?.parse().ok()?;
        // The name (field 2) is in parentheses and may have spaces; field 22 is the 20th after it.
        let stat = file("stat")?;
        let start_ticks = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse::<u64>().ok()?;
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let uptime_nanos = uptime.tv_sec as u64 * NANOS_PER_SECOND + uptime.tv_nsec as u64;
        let start_nanos = start_ticks.saturating_mul(NANOS_PER_SECOND / ticks_per_second);
        let status = file("status")?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
        Some(Self {
            index,
            tid,
            name,
            cpus: cpus.trim().to_owned(),
            busy_nanos,
            elapsed_nanos: uptime_nanos.saturating_sub(start_nanos),
        })
    }

    fn describe(&self) -> Value {
        json!({
            "lcore": self.index,
            "tid": self.tid,
            "busy": self.busy_nanos,
            "idle": self.elapsed_nanos.saturating_sub(self.busy_nanos),
            "in_interrupt": true,
            "lw_threads": [{
                "name": self.name,
                "id": self.index + 1,
                "cpumask": self.cpus,
                "elapsed": self.elapsed_nanos,
            }],
        })
    }
}

pub(super) fn set_log_level(LogLevelParams { level }: LogLevelParams) -> Result<Value, RpcError> {
    let found = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&level));
    let (_, level) = found.ok_or_else(|| {
        let names = LEVELS.map(|(name, _)| name).join(", ");
        RpcError::invalid_params(format_args!("level: {level:?} is not one of {names}"))
    })?;
    log()?.set_level(*level).map_err(RpcError::internal)?;
    Ok(true.into())
}

pub(super) fn log_level(NoParams {}: NoParams) -> Result<Value, RpcError> {
    let level = log()?.level();
    // SPDK has no level trace, so it is reported as debug.
    Ok(LEVELS.iter().find(|(_, other)| *other == level).map_or("DEBUG", |(name, _)| name).into())
}

pub(super) fn log_flags(NoParams {}: NoParams) -> Result<Value, RpcError> {
    let log = log()?;
    Ok(LOG_FLAGS
        .iter()
        .map(|flag| ((*flag).to_owned(), Value::from(log.is_debugged(flag))))
        .collect())
}

pub(super) fn set_log_flag(params: Params, wanted: bool) -> Result<Value, RpcError> {
    let LogFlagParams { flag } = read(params)?;
    let chosen: Vec<_> =
        LOG_FLAGS.into_iter().filter(|one| flag == "all" || flag == *one).collect();
    if chosen.is_empty() {
        let message = format!("flag: {flag:?} is not all, or one of {}", LOG_FLAGS.join(", "));
        return Err(RpcError::invalid_params(message));
    }
    for flag in chosen {
        log()?.set_debugged(flag, wanted).map_err(RpcError::internal)?;
    }
    Ok(true.into())
}

fn log() -> Result<&'static LogLevel, RpcError> {
    LogLevel::get().ok_or_else(|| RpcError::internal("another program writes the target's log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_cores_are_told_apart() {
        let body = || Reactor::read(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let spawn = |name: &str| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(body);
            thread.expect("a thread").join().expect("no panic")
        };
        let core = spawn("feedrail-3").expect("it is one of a core");
        assert_eq!((core.index, core.name.as_str()), (3, "feedrail-3"));
        assert!(core.elapsed_nanos < 3_600_000_000_000 && !core.cpus.is_empty());
        assert!(spawn("feedrail-manage").is_none());
    }

    #[test]
    fn one_transport_is_listed() {
        let limits = Limits::default();
        let listed = |params: Value| {
            let Value::Object(params) = params else { panic!("an object") };
            transports(params, &limits)
        };
        let all = listed(json!({})).expect("no filter");
        assert_eq!(all, listed(json!({ "trtype": "rdma" })).expect("the one"));
        assert_eq!(all[0]["max_queue_depth"], limits.queue_depth);
        assert!(listed(json!({ "trtype": "TCP" })).is_err());
    }
}
