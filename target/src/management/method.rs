//! Methods of the management socket. Those that do the same as in SPDK have SPDK's names.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvme_proto::Nqn;
use serde_json::{Value, json};

use super::ana::{self, AnaParams, describe_states};
use super::bdev::{BdevKind, Bdevs};
use super::config;
use super::config_toml::describe_toml;
use super::keyring::{Keyring, keyring_calls};
use super::load;
use super::method_params::{BdevName, DrainParams, MethodFilter, ReloadParams, SubsystemName};
use super::rpc::{NANOS_PER_SECOND, NoParams, Params, RpcError, read};
use super::spdk_framework;
use super::spdk_params::take_foreign;
use super::stats::{describe_queues, describe_stats};
use super::subsystem::{
    ListenAddress, ListenerParams, NewListenerParams, ReferralName, ReferralParams,
    TransportParams, describe_address, describe_socket_address,
};
use super::trace::{TraceParams, describe_trace};
use crate::config::ExportRoots;
use crate::controller::{Associations, Controller, DrainScope, Drained};
use crate::driver::clock::Clock;
use crate::inventory::allowed_host::VisibilityChange;
use crate::inventory::error::{ChangeError, ExportError};
use crate::inventory::open::OpenPurpose;
use crate::inventory::port::Port;
use crate::inventory::referral::Referral;
use crate::listen_error::AddressError;
use crate::listeners::Listeners;
use crate::reloader::Reloader;

/// State that the methods read and change.
#[derive(Debug)]
pub(super) struct Methods {
    pub(super) associations: Arc<Associations>,
    pub(super) listeners: Arc<Listeners>,
    reloader: Option<Arc<Reloader>>,
    bdevs: Mutex<Bdevs>,
    keyring: Mutex<Keyring>,
    /// Clock for the field `ticks` of `bdev_get_iostat`, in nanoseconds.
    pub(super) clock: Clock,
}

/// Longest time that one `feedrail_drain` call waits for commands. A client that has left occupies
/// its place for at most this time.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

type Method = fn(&Methods, Params) -> Result<Value, RpcError>;

const METHODS: [(&str, Method); 67] = [
    ("bdev_aio_create", |of, params| of.create_file(params, BdevKind::Aio)),
    ("bdev_aio_delete", |of, params| of.delete_bdev(params, BdevKind::Aio)),
    ("bdev_aio_rescan", |of, params| of.rescan_bdev(params, BdevKind::Aio)),
    ("bdev_get_bdevs", |of, params| of.get_bdevs(read(params)?)),
    ("bdev_get_iostat", Methods::get_iostat),
    ("bdev_malloc_create", |of, params| Ok(of.bdevs().create_malloc(read(params)?)?.into())),
    ("bdev_malloc_delete", |of, params| of.delete_bdev(params, BdevKind::Malloc)),
    ("bdev_null_create", |of, params| Ok(of.bdevs().create_null(read(params)?)?.into())),
    ("bdev_null_delete", |of, params| of.delete_bdev(params, BdevKind::Null)),
    ("bdev_null_resize", Methods::resize_null),
    ("bdev_set_qos_limit", Methods::set_bdev_limits),
    ("bdev_uring_create", |of, params| of.create_file(params, BdevKind::Uring)),
    ("bdev_uring_delete", |of, params| of.delete_bdev(params, BdevKind::Uring)),
    ("bdev_uring_rescan", |of, params| of.rescan_bdev(params, BdevKind::Uring)),
    ("feedrail_drain", Methods::drain),
    ("feedrail_get_config_losses", |of, params| of.get_config_losses(read(params)?)),
    ("feedrail_get_config_toml", |of, params| of.get_config_toml(read(params)?)),
    ("feedrail_get_metrics_address", |of, params| of.get_metrics_address(read(params)?)),
    ("feedrail_load_config", Methods::load_config),
    ("feedrail_protect_ns", Methods::protect_namespace),
    ("feedrail_reauthenticate", Methods::reauthenticate),
    ("feedrail_reload_config", |of, params| of.reload_config(read(params)?)),
    ("feedrail_rename_ns", Methods::rename_namespace),
    ("feedrail_resize_ns", Methods::resize_namespace),
    ("feedrail_set_host_qos", Methods::set_host_limits),
    ("feedrail_trace_commands", Methods::trace_commands),
    ("framework_get_config", |of, params| of.get_config(read(params)?)),
    ("framework_get_reactors", |_, params| spdk_framework::reactors(read(params)?)),
    ("framework_get_subsystems", |_, params| get_parts(read(params)?)),
    ("framework_wait_init", |_, params| spdk_framework::wait_init(read(params)?)),
    ("keyring_file_add_key", |of, params| of.add_key(read(params)?)),
    ("keyring_file_remove_key", |of, params| of.remove_key(read(params)?)),
    ("keyring_get_keys", |of, params| of.get_keys(read(params)?)),
    ("log_clear_flag", |_, params| spdk_framework::set_log_flag(params, false)),
    ("log_get_flags", |_, params| spdk_framework::log_flags(read(params)?)),
    ("log_get_level", |_, params| spdk_framework::log_level(read(params)?)),
    ("log_get_print_level", |_, params| spdk_framework::log_level(read(params)?)),
    ("log_set_flag", |_, params| spdk_framework::set_log_flag(params, true)),
    ("log_set_level", |_, params| spdk_framework::set_log_level(read(params)?)),
    ("log_set_print_level", |_, params| spdk_framework::set_log_level(read(params)?)),
    ("nvmf_create_subsystem", |of, params| of.create_subsystem(read(params)?)),
    ("nvmf_create_transport", |_, params| create_transport(read(params)?)),
    ("nvmf_delete_subsystem", |of, params| of.delete_subsystem(read(params)?)),
    ("nvmf_discovery_add_referral", |of, params| of.add_referral(read(params)?)),
    ("nvmf_discovery_get_referrals", |of, params| of.get_referrals(read(params)?)),
    ("nvmf_discovery_remove_referral", |of, params| of.remove_referral(read(params)?)),
    ("nvmf_get_stats", |of, params| of.get_stats(read(params)?)),
    ("nvmf_get_subsystems", |of, params| of.get_subsystems(read(params)?)),
    ("nvmf_get_transports", Methods::get_transports),
    ("nvmf_ns_add_host", |of, params| of.change_visibility(params, VisibilityChange::Show)),
    ("nvmf_ns_remove_host", |of, params| of.change_visibility(params, VisibilityChange::Hide)),
    ("nvmf_set_config", |of, params| of.set_config(read(params)?)),
    ("nvmf_set_max_subsystems", |_, params| spdk_framework::set_max_subsystems(params)),
    ("nvmf_subsystem_add_host", Methods::add_host),
    ("nvmf_subsystem_add_listener", |of, params| of.add_listener(read(params)?)),
    ("nvmf_subsystem_add_ns", Methods::add_namespace),
    ("nvmf_subsystem_allow_any_host", Methods::allow_any_host),
    ("nvmf_subsystem_get_controllers", Methods::get_controllers),
    ("nvmf_subsystem_get_listeners", |of, params| of.get_listeners(read(params)?)),
    ("nvmf_subsystem_get_qpairs", Methods::get_queues),
    ("nvmf_subsystem_listener_set_ana_state", Methods::set_ana_state),
    ("nvmf_subsystem_remove_host", |of, params| of.remove_host(read(params)?)),
    ("nvmf_subsystem_remove_listener", |of, params| of.remove_listener(read(params)?)),
    ("nvmf_subsystem_remove_ns", Methods::remove_namespace),
    ("nvmf_subsystem_set_keys", Methods::set_keys),
    ("rpc_get_methods", |_, params| get_methods(params)),
    ("spdk_get_version", |_, params| spdk_framework::version(read(params)?)),
];

impl Methods {
    pub(super) fn new(listeners: Arc<Listeners>, reloader: Option<Arc<Reloader>>) -> Self {
        let associations = Arc::clone(listeners.associations());
        Self {
            associations,
            listeners,
            reloader,
            bdevs: Mutex::default(),
            keyring: Mutex::default(),
            clock: Clock::new(),
        }
    }

    /// Checks whether the file at a path may be exported.
    ///
    /// # Errors
    /// It is neither below `export_roots` nor named by the configuration.
    pub(super) fn check_export_root(&self, path: &Path) -> Result<(), RpcError> {
        // A path that leads nowhere gets its own error where it is opened.
        let Ok(real) = path.canonicalize() else { return Ok(()) };
        let roots = ExportRoots::of(&self.listeners.config());
        roots
            .check(&real)
            .map_err(|error| RpcError::invalid_params(format_args!("filename: {error}")))
    }

    /// Executes a method. May block on storage.
    pub(super) fn call(&self, method: &str, mut params: Params) -> Result<Value, RpcError> {
        if let Some(result) = spdk_framework::without_effect(method) {
            return Ok(result);
        }
        let found = METHODS.iter().find(|(name, _)| *name == method);
        let (name, method) = found.ok_or_else(RpcError::no_method)?;
        take_foreign(name, &mut params)?;
        method(self, params)
    }

    /// Returns the calls that restore the present exports in another target.
    fn get_config(&self, BdevName { name }: BdevName) -> Result<Value, RpcError> {
        let inventory = self.associations.inventory();
        match name.as_str() {
            "bdev" => Ok(config::bdev_calls(&self.bdevs(), inventory).into()),
            "keyring" => Ok(keyring_calls(&self.keyring(), inventory).into()),
            "nvmf" => Ok(config::nvmf_calls(inventory).into()),
            _ => Err(RpcError::invalid_params(format_args!(
                "name: {name} is not bdev, keyring or nvmf"
            ))),
        }
    }

    /// Returns the address of the metrics and the status page; null if they are not served.
    fn get_metrics_address(&self, NoParams {}: NoParams) -> Result<Value, RpcError> {
        Ok(json!(self.listeners.metrics().map(|address| address.to_string())))
    }

    fn load_config(&self, params: Params) -> Result<Value, RpcError> {
        let inventory = self.associations.inventory();
        let mut exported = config::bdev_calls(&self.bdevs(), inventory);
        exported.extend(keyring_calls(&self.keyring(), inventory));
        exported.extend(config::nvmf_calls(inventory));
        load::load(params, exported, &|method, params| self.call(method, params))
    }

    /// Returns the settings that `framework_get_config` cannot express, one line each.
    fn get_config_losses(&self, NoParams {}: NoParams) -> Result<Value, RpcError> {
        Ok(config::losses(self.associations.inventory()).into())
    }

    fn add_listener(&self, params: NewListenerParams) -> Result<Value, RpcError> {
        let (nqn, address) = (parse_nqn(&params.nqn)?, params.listen_address.get()?);
        let state = params.ana_state.as_deref().map(ana::state).transpose()?;
        self.listeners.add_listener(&nqn, address)?;
        if let Some(state) = state {
            self.associations.set_ana_state(&nqn, address, None, state)?;
        }
        Ok(true.into())
    }

    fn get_transports(&self, params: Params) -> Result<Value, RpcError> {
        spdk_framework::transports(params, self.associations.inventory().limits())
    }

    fn remove_listener(&self, params: ListenerParams) -> Result<Value, RpcError> {
        let (nqn, address) = (parse_nqn(&params.nqn)?, params.listen_address.get()?);
        done(self.listeners.remove_listener(&nqn, address))
    }

    fn add_referral(&self, params: ReferralParams) -> Result<Value, RpcError> {
        self.associations.inventory().referrals().add(params.referral()?)?;
        self.associations.announce_discovery();
        Ok(true.into())
    }

    fn remove_referral(&self, params: ReferralName) -> Result<Value, RpcError> {
        self.associations.inventory().referrals().remove(params.service()?)?;
        self.associations.announce_discovery();
        Ok(true.into())
    }

    fn get_referrals(&self, NoParams {}: NoParams) -> Result<Value, RpcError> {
        let describe = |referral: Referral| {
            let address = describe_socket_address(referral.address);
            let mut described = json!({ "address": address, "subnqn": Nqn::DISCOVERY.as_str() });
            if let Some(hosts) = &referral.hosts {
                described["hosts"] = hosts.iter().map(Nqn::as_str).collect();
            }
            described
        };
        Ok(self.associations.inventory().referrals().list().into_iter().map(describe).collect())
    }

    fn get_listeners(&self, SubsystemName { nqn }: SubsystemName) -> Result<Value, RpcError> {
        let inventory = self.associations.inventory();
        let subsystem = inventory.find_subsystem(&parse_nqn(&nqn)?)?;
        let listener = |port: &Arc<Port>| {
            let ana = port.ana(&subsystem)?;
            let states = describe_states(&ana);
            let mut described = json!(port.state());
            described["address"] = describe_address(port);
            described["ana_states"] = states;
            Some(described)
        };
        Ok(inventory.ports().iter().filter_map(listener).collect())
    }

    fn set_ana_state(&self, params: Params) -> Result<Value, RpcError> {
        let AnaParams { nqn, listen_address, ana_state, anagrpid } = read(params)?;
        let (nqn, address) = (parse_nqn(&nqn)?, listen_address.get()?);
        let group = anagrpid.map(ana::group).transpose()?;
        let state = ana::state(&ana_state)?;
        done(self.associations.set_ana_state(&nqn, address, group, state))
    }

    /// Drains listeners, or ends the drain if `undo` is set. Returns whether all commands have
    /// completed; if not, the client repeats the call.
    fn drain(&self, params: Params) -> Result<Value, RpcError> {
        let DrainParams { nqn, listen_address, undo } = read(params)?;
        let nqn = nqn.as_deref().map(parse_nqn).transpose()?;
        let address = listen_address.as_ref().map(ListenAddress::get).transpose()?;
        let scope = DrainScope { nqn, address };
        let drained = match undo {
            true if self.associations.end_drain(scope) => Drained::Done,
            true => Drained::Nothing,
            false => self.associations.drain(scope, DRAIN_TIMEOUT),
        };
        match drained {
            Drained::Nothing => {
                let message = "no such subsystem is served at such an address";
                Err(RpcError::invalid_params(message))
            }
            Drained::Done => Ok(true.into()),
            Drained::UnderWay => Ok(false.into()),
        }
    }

    /// Ends ANA transitions that have exceeded ANATT. The server calls this once a second.
    pub(super) fn second_passed(&self) {
        self.associations.end_ana_transitions();
    }

    /// Controllers of the subsystem that the parameters name.
    fn controllers_of(&self, params: Params) -> Result<Vec<Arc<Controller>>, RpcError> {
        let SubsystemName { nqn } = read(params)?;
        let inventory = self.associations.inventory();
        let subsystem = inventory.find_subsystem(&parse_nqn(&nqn)?)?;
        Ok(self.associations.controllers_of(&subsystem))
    }

    fn get_queues(&self, params: Params) -> Result<Value, RpcError> {
        let controllers = self.controllers_of(params)?;
        Ok(controllers.iter().flat_map(|controller| describe_queues(controller)).collect())
    }

    fn get_stats(&self, NoParams {}: NoParams) -> Result<Value, RpcError> {
        let cores = self.associations.inventory().io_stats_by_core();
        let mut stats = describe_stats(&cores, &self.associations.controllers());
        stats["tick_rate"] = NANOS_PER_SECOND.into();
        Ok(stats)
    }

    /// Records a trace of commands. Blocks until it is complete.
    fn trace_commands(&self, params: Params) -> Result<Value, RpcError> {
        let (time, limit) = read::<TraceParams>(params)?.bounds()?;
        let is_over = || self.associations.is_stopping();
        let record = self.associations.trace().take(time, limit, is_over);
        let record = record.map_err(RpcError::internal)?;
        Ok(describe_trace(&record, &self.associations.controllers()))
    }

    fn get_controllers(&self, params: Params) -> Result<Value, RpcError> {
        let controllers = self.controllers_of(params)?;
        let describe = |controller: &Arc<Controller>| {
            let stats = controller.quota.as_ref().map(|quota| quota.stats()).unwrap_or_default();
            let limits = controller.subsystem().map(|of| of.limits_of(&controller.host));
            json!({
                "cntlid": controller.cntlid.0,
                "hostnqn": controller.host.nqn.to_string(),
                "hostid": controller.host.id.to_string(),
                "peer": controller.peer.to_string(),
                "num_io_qpairs": controller.io_queues(),
                "limits": limits,
                "throttled_commands": stats.throttled,
                "throttled_us": u64::try_from(stats.waited.as_micros()).unwrap_or(u64::MAX),
            })
        };
        Ok(controllers.iter().map(describe).collect())
    }

    /// Applies the present configuration file; with `dry_run`, only returns what would change.
    fn reload_config(&self, ReloadParams { dry_run }: ReloadParams) -> Result<Value, RpcError> {
        let reloader = self.reloader()?;
        let purpose = if dry_run { OpenPurpose::Check } else { OpenPurpose::Serve };
        let report = reloader.reload(purpose).map_err(RpcError::internal)?;
        let warnings: Vec<_> = report.warnings.iter().map(ToString::to_string).collect();
        Ok(json!({ "dry_run": dry_run, "changes": report.changes, "warnings": warnings }))
    }

    /// Returns the configuration file, updated to the present exports.
    fn get_config_toml(&self, NoParams {}: NoParams) -> Result<Value, RpcError> {
        // The lock is held so that no client adds or deletes a bdev meanwhile.
        let _bdevs = self.bdevs();
        describe_toml(self.associations.inventory(), self.reloader()?)
    }

    fn reloader(&self) -> Result<&Reloader, RpcError> {
        self.reloader.as_deref().ok_or_else(|| {
            RpcError::internal("the target was started without a configuration file (--config)")
        })
    }

    pub(super) fn keyring(&self) -> MutexGuard<'_, Keyring> {
        self.keyring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bdevs(&self) -> MutexGuard<'_, Bdevs> {
        self.bdevs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn parse_nqn(text: &str) -> Result<Nqn, RpcError> {
    Nqn::new(text).map_err(|error| RpcError::invalid_params(format_args!("nqn: {error}")))
}

/// Result of a method that returns `true`.
pub(super) fn done<T, E: Into<RpcError>>(result: Result<T, E>) -> Result<Value, RpcError> {
    result.map(|_| true.into()).map_err(Into::into)
}

impl From<ChangeError> for RpcError {
    /// A wrong name is the client's error (invalid params), a medium that cannot be opened the
    /// target's (internal error).
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Address(AddressError::NoInterface(_)) => Self::invalid_params(error),
            ChangeError::Export(
                ExportError::Open { .. } | ExportError::TooMany | ExportError::Protection(_),
            )
            | ChangeError::Protection(_)
            | ChangeError::Address(_) => Self::internal(error),
            _ => Self::invalid_params(error),
        }
    }
}

fn create_transport(params: TransportParams) -> Result<Value, RpcError> {
    done(params.check())
}

fn get_parts(NoParams {}: NoParams) -> Result<Value, RpcError> {
    Ok(config::parts())
}

fn get_methods(params: Params) -> Result<Value, RpcError> {
    let _: MethodFilter = read(params)?;
    let names = method_names().chain(spdk_framework::names_without_effect());
    Ok(names.map(Value::from).collect())
}

/// Names of all methods but those of SPDK that have no effect here.
pub(super) fn method_names() -> impl Iterator<Item = &'static str> {
    METHODS.iter().map(|(name, _)| *name)
}
