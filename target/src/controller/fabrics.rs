//! Fabrics commands: Connect, Property Get and Set, Disconnect.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme_proto::auth::AuthenticationReceive;
use nvme_proto::fabrics::{
    Connect, ConnectData, ConnectParameter, ConnectResponse, FabricsCommand, PropertyGet,
    PropertySet,
};
use nvme_proto::registers::{Cap, CapCss, Cc, Crto, Property, Version};
use nvme_proto::{
    Cid, Cntlid, Command as Parsed, ConnectStatus, FabricsType, HostNqn, InvalidNqn, Qid, Sqe,
    Status,
};
use rdma::Time;

use super::command::{
    CommandOutcome, CommandWork, ControlCommand, ControlWork, Execution, ParsedCommand, transfer,
};
use super::kind::ControllerKind;
use super::members::Joined;
use super::queue::{Membership, Queue, QueueState};
use super::stage::Epoch;
use super::state::{Controller, NewController};
use crate::inventory::named_host::NamedHost;
use crate::inventory::port::ServedSubsystem;
use crate::limits::connection_quota::ConnectionPermit;
use crate::limits::{AUTH_MESSAGE_BYTES, Limits};

/// NVMe version that controllers report (VS, VER).
pub(super) const VERSION: Version = Version::V2_0;
/// CAP.TO and CRTO.CRWMT, in units of 500 ms (20 are 10 s): longest time for CSTS.RDY to follow
/// CC.EN, so also how long a host waits for a controller reset.
const READY_TIMEOUT: u8 = 20;

/// Checks the first command of a connection, which must be Connect for the negotiated QID.
pub(super) fn parse_connecting(
    queue: &Queue,
    sqe: &Sqe,
    parsed: Result<Parsed, Status>,
) -> Result<ParsedCommand, CommandOutcome> {
    let refuse = |status: Status, parameter: ConnectParameter| {
        Err(CommandOutcome { result: parameter.to_dw0().into(), status: status.with_dnr() })
    };
    match parsed {
        Ok(Parsed::Fabrics(FabricsCommand::Connect(connect))) => {
            if connect.qid != queue.qid {
                return refuse(Status::CONNECT_INVALID_PARAMETERS, ConnectParameter::QID);
            }
            if connect.queue_entries > u32::from(queue.entries) {
                return refuse(Status::CONNECT_INVALID_PARAMETERS, ConnectParameter::SQSIZE);
            }
            Ok(control(FabricsCommand::Connect(connect))?)
        }
        // Parsing refuses only one parameter of Connect: an SQSIZE of one entry.
        Err(status) if status.is(Status::CONNECT_INVALID_PARAMETERS) => {
            refuse(status, ConnectParameter::SQSIZE)
        }
        Err(status) if sqe.is_fabrics() => Err(status.into()),
        _ => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into()),
    }
}

/// Checks a fabrics command of a connected queue. A second Connect is refused, as are Property
/// commands on an I/O queue, Disconnect on the admin queue, and authentication of a host that has
/// no key.
pub(super) fn parse_live(
    qid: Qid,
    live: &Membership,
    command: FabricsCommand,
) -> Result<ParsedCommand, Status> {
    match command {
        FabricsCommand::Connect(_) => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        FabricsCommand::PropertyGet(_) | FabricsCommand::PropertySet(_) if !qid.is_admin() => {
            Err(Status::INVALID_OPCODE.with_dnr())
        }
        FabricsCommand::Disconnect(_) if qid.is_admin() => {
            Err(Status::INVALID_QUEUE_TYPE.with_dnr())
        }
        FabricsCommand::AuthenticationSend(_) | FabricsCommand::AuthenticationReceive(_)
            if live.auth.is_none() =>
        {
            Err(Status::INVALID_OPCODE.with_dnr())
        }
        command => control(command),
    }
}

/// Checks a command of a queue whose host has to authenticate. All but Authentication Send and
/// Receive are refused (Base, 6.3), those that read and write properties and Disconnect included.
pub(super) fn parse_authenticating(
    sqe: &Sqe,
    parsed: Result<Parsed, Status>,
) -> Result<ParsedCommand, Status> {
    let is_of_authentication = sqe.is_fabrics()
        && [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE]
            .contains(&sqe.fabrics_type());
    match parsed {
        Ok(Parsed::Fabrics(FabricsCommand::Connect(_))) => {
            Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
        }
        Ok(Parsed::Fabrics(command)) if is_of_authentication => control(command),
        Err(status) if is_of_authentication => Err(status),
        _ => Err(Status::AUTHENTICATION_REQUIRED.with_dnr()),
    }
}

fn control(command: FabricsCommand) -> Result<ParsedCommand, Status> {
    let transferred = match command {
        // A host may have memory for more than the longest message.
        FabricsCommand::AuthenticationReceive(receive) => {
            let length_bytes = receive.length_bytes.min(AUTH_MESSAGE_BYTES);
            AuthenticationReceive { length_bytes }.transfer()
        }
        command => command.transfer(),
    };
    Ok(ParsedCommand {
        transfer: transfer(transferred, AUTH_MESSAGE_BYTES)?,
        work: CommandWork::Control(ControlWork(ControlCommand::Fabrics(command))),
    })
}

pub(super) fn execute(
    queue: &mut Queue,
    now: Time,
    cid: Cid,
    command: FabricsCommand,
    data: &mut [u8],
) -> Execution {
    let outcome = match command {
        FabricsCommand::Connect(command) => {
            return connect(queue, now, cid, &command, data).unwrap_or_else(Execution::Complete);
        }
        FabricsCommand::PropertyGet(command) => with_controller(queue, |c| c.property(command)),
        FabricsCommand::PropertySet(command) => {
            let outcome = with_controller(queue, |c| c.set_property(command).map(|()| 0));
            note_enabled(queue, now);
            outcome
        }
        FabricsCommand::Disconnect(_) => {
            if let QueueState::Live(live) = &queue.state {
                live.controller.queue_disconnects(&queue.link);
            }
            return Execution::Disconnect(CommandOutcome::SUCCESS);
        }
        FabricsCommand::AuthenticationSend(_) => {
            return queue.authenticate(now, |auth, context| auth.send(context, data));
        }
        FabricsCommand::AuthenticationReceive(_) => {
            return queue.authenticate(now, |auth, context| auth.receive(context, cid, data));
        }
    };
    Execution::Complete(outcome)
}

fn with_controller(
    queue: &Queue,
    act: impl FnOnce(&Controller) -> Result<u64, Status>,
) -> CommandOutcome {
    match queue.controller() {
        Some(controller) => act(controller).into(),
        None => Status::COMMAND_SEQUENCE_ERROR.with_dnr().into(),
    }
}

/// Updates `disabled_since`, from which the enable timeout runs, after a write of CC.
fn note_enabled(queue: &mut Queue, now: Time) {
    if let QueueState::Live(live) = &mut queue.state {
        live.disabled_since = match (live.controller.is_ready(), live.disabled_since) {
            (true, _) => None,
            (false, since) => since.or(Some(now)),
        };
    }
}

/// Executes Connect, whose submission queue entry was checked: checks its data, then creates an
/// association (admin queue) or joins one (I/O queue).
fn connect(
    queue: &mut Queue,
    now: Time,
    cid: Cid,
    connect: &Connect,
    data: &[u8],
) -> Result<Execution, CommandOutcome> {
    if !matches!(queue.state, QueueState::Connecting { .. }) {
        return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into());
    }
    let data = ConnectData::parse(data).map_err(|_| Status::DATA_SGL_LENGTH_INVALID.with_dnr())?;
    let named = data.subsystem().ok().and_then(|nqn| queue.port.find(&nqn));
    queue.count_for(named.as_ref().map(|served| &*served.subsystem));
    let entered =
        host(data).and_then(|host| enter_association(queue, now, cid, connect, data, host));
    let entry = entered.inspect_err(|outcome| {
        if queue.associations.log_rate().admit(now) {
            tracing::warn!(
                peer = %queue.peer, host = ?data.hostnqn, hostid = ?data.hostid, qid = %queue.qid,
                subsystem = ?data.subnqn, reason = %ConnectRefusal(*outcome), "connect refused"
            );
        }
    })?;
    let flow_control = !connect.attributes.disable_sq_flow_control();
    // At most `queue.entries`, as was checked, so it fits in 16 bits.
    let entries = u16::try_from(connect.queue_entries).unwrap_or(queue.entries);
    let QueueEntry { controller, epoch, joined, place } = entry;
    let outcome = CommandOutcome::success(controller.connect_response());
    queue.connected(now, controller, epoch, place, entries, flow_control);
    Ok(match joined {
        Joined::Now => Execution::Complete(outcome),
        Joined::Later => Execution::Parked,
    })
}

/// Returns the host of a Connect command. Some hosts send no NQN unless one is configured; they get
/// one that is derived from their Host Identifier.
fn host(data: &ConnectData) -> Result<NamedHost, CommandOutcome> {
    let id = data.hostid;
    if id.is_zero() {
        return Err(invalid(ConnectParameter::HOSTID));
    }
    match data.hostnqn.parse() {
        Ok(nqn) => Ok(NamedHost { nqn: HostNqn(nqn), named: true, id }),
        Err(InvalidNqn::Empty) => {
            Ok(NamedHost { nqn: HostNqn::from_host_id(id), named: false, id })
        }
        Err(_) => Err(invalid(ConnectParameter::HOSTNQN)),
    }
}

/// Logs a Connect that was refused before its data was checked.
pub(super) fn report_refusal(queue: &Queue, now: Time, outcome: CommandOutcome) {
    if queue.associations.log_rate().admit(now) {
        let reason = ConnectRefusal(outcome);
        tracing::warn!(peer = %queue.peer, qid = %queue.qid, %reason, "connect refused");
    }
}

/// Reason that a Connect was refused, as text for the log.
struct ConnectRefusal(CommandOutcome);

impl fmt::Display for ConnectRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CommandOutcome { result, status } = self.0;
        write!(f, "{}", ConnectStatus(status))?;
        match status.is(Status::CONNECT_INVALID_PARAMETERS) {
            true => write!(f, ": {}", ConnectParameter::from_dw0(result as u32)),
            false => Ok(()),
        }
    }
}

/// Membership of a queue in an association, after a successful Connect.
struct QueueEntry {
    controller: Arc<Controller>,
    epoch: Epoch,
    joined: Joined,
    /// Permit that counts the connection; `None` for a discovery controller.
    place: Option<ConnectionPermit>,
}

fn invalid(parameter: ConnectParameter) -> CommandOutcome {
    CommandOutcome {
        result: parameter.to_dw0().into(),
        status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
    }
}

/// Creates an association for an admin queue; joins one with an I/O queue.
fn enter_association(
    queue: &Queue,
    now: Time,
    cid: Cid,
    connect: &Connect,
    data: &ConnectData,
    host: NamedHost,
) -> Result<QueueEntry, CommandOutcome> {
    if queue.qid.is_admin() {
        make_association(queue, now, connect, data, host)
    } else {
        let place = admit(queue, now, &host)?;
        join_association(queue, cid, connect, data, &host, place)
    }
}

/// Takes a permit for a queue of a host. If its limit is reached, Connect fails with Controller
/// Busy (NVMe-oF, Connect).
fn admit(queue: &Queue, now: Time, host: &NamedHost) -> Result<ConnectionPermit, CommandOutcome> {
    queue.associations.admit(queue.peer.party()).map_err(|full| {
        if queue.associations.log_rate().admit(now) {
            tracing::warn!(peer = %queue.peer, host = %host.nqn, "queue refused: {full}");
        }
        Status::CONNECT_CONTROLLER_BUSY.into()
    })
}

fn make_association(
    queue: &Queue,
    now: Time,
    connect: &Connect,
    data: &ConnectData,
    host: NamedHost,
) -> Result<QueueEntry, CommandOutcome> {
    if data.cntlid() != Cntlid::DYNAMIC {
        return Err(invalid(ConnectParameter::CNTLID));
    }
    let nqn = data.subsystem().map_err(invalid)?;
    let (kind, ana, place) = if queue.associations.inventory().is_discovery(&nqn) {
        (ControllerKind::Discovery(Box::new(nqn)), Arc::default(), None)
    } else {
        let found = queue.port.find(&nqn).ok_or(invalid(ConnectParameter::SUBNQN))?;
        let ServedSubsystem { subsystem, ana } = found;
        if !subsystem.allows(&host) {
            return Err(Status::CONNECT_INVALID_HOST.with_dnr().into());
        }
        if queue.associations.has_unfinished(host.id, &subsystem) {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        let place = admit(queue, now, &host)?;
        (ControllerKind::Nvm(subsystem), ana, Some(place))
    };
    let new = NewController {
        kind,
        host,
        port: Arc::clone(&queue.port),
        ana,
        peer: queue.peer,
        keep_alive_ms: connect.keep_alive_timeout_ms,
        now,
    };
    let controller = queue.associations.associate(new).ok_or(Status::CONNECT_CONTROLLER_BUSY)?;
    controller.join_admin(&queue.link);
    if controller.start_logged {
        tracing::info!(
            cntlid = %controller.cntlid, %nqn, host = %host.nqn, peer = %queue.peer, "connected"
        );
    }
    Ok(QueueEntry { controller, epoch: Epoch::default(), joined: Joined::Now, place })
}

fn join_association(
    queue: &Queue,
    cid: Cid,
    connect: &Connect,
    data: &ConnectData,
    host: &NamedHost,
    place: ConnectionPermit,
) -> Result<QueueEntry, CommandOutcome> {
    // Without DNR: the association may just have ended, and the host can retry with a new one.
    let gone = || CommandOutcome {
        status: Status::CONNECT_INVALID_PARAMETERS,
        ..invalid(ConnectParameter::CNTLID)
    };
    let nqn = data.subsystem().map_err(invalid)?;
    // The discovery service has no I/O queues.
    if queue.associations.inventory().is_discovery(&nqn) {
        return Err(invalid(ConnectParameter::QID));
    }
    let controller = queue.associations.controller(data.cntlid()).ok_or_else(gone)?;
    let subsystem = controller.subsystem().ok_or(invalid(ConnectParameter::QID))?;
    if nqn != subsystem.nqn {
        return Err(invalid(ConnectParameter::SUBNQN));
    }
    if host.nqn != controller.host.nqn {
        return Err(invalid(ConnectParameter::HOSTNQN));
    }
    if host.id != controller.host.id {
        return Err(invalid(ConnectParameter::HOSTID));
    }
    if queue.port.id != controller.port.id {
        return Err(invalid(ConnectParameter::CNTLID));
    }
    if connect.qid.0 > controller.granted_io_queues() {
        return Err(invalid(ConnectParameter::QID));
    }
    if connect.queue_entries > u32::from(controller.limits.queue_depth) {
        return Err(invalid(ConnectParameter::SQSIZE));
    }
    let (epoch, joined) = controller.join(&queue.link, cid)?;
    Ok(QueueEntry { controller, epoch, joined, place: Some(place) })
}

/// Value of the CAP register, which depends on the limits only.
pub(super) fn capabilities(limits: &Limits) -> Cap {
    Cap::new()
        .with_mqes_z(limits.queue_depth - 1)
        .with_cqr(true)
        .with_to(READY_TIMEOUT)
        .with_css(CapCss::new().with_nvm(true))
        .with_crwms(true)
}

impl Controller {
    fn property(&self, get: PropertyGet) -> Result<u64, Status> {
        if get.property.size() != Some(get.size) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let shared = self.shared();
        match get.property {
            Property::CAP => Ok(capabilities(&self.limits).into_bits()),
            Property::VS => Ok(VERSION.into_bits().get().into()),
            Property::CC => Ok(shared.cc.into_bits().into()),
            Property::CSTS => Ok(shared.csts.into_bits().into()),
            Property::CRTO => Ok(Crto::new().with_crwmt(READY_TIMEOUT.into()).into_bits().into()),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }

    fn set_property(&self, set: PropertySet) -> Result<(), Status> {
        if set.property != Property::CC || set.property.size() != Some(set.size) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.configure(Cc::from_bits(set.value as u32))
    }

    /// Returns dword 0 of the response to a successful Connect: the CNTLID, and whether the
    /// host has to authenticate on the queue.
    pub(super) fn connect_response(&self) -> u64 {
        let response = ConnectResponse::controller(self.cntlid);
        response.with_authentication_required(self.authenticates).into_bits().into()
    }

    /// Number of I/O queues granted to the host by Set Features (Number of Queues).
    fn granted_io_queues(&self) -> u16 {
        self.shared().features.io_queues()
    }

    pub(super) fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms.load(Ordering::Relaxed)
    }

    pub(super) fn set_keep_alive_ms(&self, ms: u32) {
        self.keep_alive_ms.store(ms, Ordering::Relaxed);
    }
}
