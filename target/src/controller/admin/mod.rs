//! Admin commands: checks whether a command is allowed, and calls the module that executes it.

mod ana_log;
mod discovery_log;
mod feature;
mod identify;
mod log;

use nvme_proto::{AdminCommand, Cid, Status};

use super::command::{
    CommandOutcome, CommandWork, ControlCommand, ControlWork, Execution, ParsedCommand, transfer,
};
use super::queue::Queue;
use super::stage::Epoch;
use super::state::Controller;

pub(super) fn parse(
    controller: &Controller,
    command: AdminCommand,
) -> Result<ParsedCommand, Status> {
    let epoch = controller.ready_epoch().ok_or_else(|| controller.refusal())?;
    if !controller.support.has_admin(command.opcode()) {
        return Err(Status::INVALID_OPCODE.with_dnr());
    }
    Ok(ParsedCommand {
        transfer: transfer(command.transfer(), controller.limits.max_transfer_bytes)?,
        work: CommandWork::Control(ControlWork(ControlCommand::Admin(command, epoch))),
    })
}

pub(super) fn execute(
    queue: &Queue,
    cid: Cid,
    command: &AdminCommand,
    epoch: Epoch,
    data: &mut [u8],
) -> Execution {
    let Some(controller) = queue.controller() else {
        return Execution::Complete(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into());
    };
    if !controller.is_ready_in(epoch) {
        return Execution::Complete(Status::ABORT_REQUESTED.into());
    }
    data.fill(0);
    let result = match command {
        AdminCommand::Identify(identify) => identify::write(controller, identify, data).map(|()| 0),
        AdminCommand::GetLogPage(get) => log::write(controller, get, data).map(|()| 0),
        AdminCommand::SetFeatures(set) => match feature::set(controller, cid, set) {
            Ok(None) => return Execution::Parked,
            Ok(Some(value)) => Ok(value.into()),
            Err(status) => Err(status),
        },
        AdminCommand::GetFeatures(get) => feature::get(controller, get, data).map(u64::from),
        AdminCommand::KeepAlive => keep_alive(controller),
        AdminCommand::AsyncEventRequest => match controller.request_event(cid) {
            Ok(None) => return Execution::Parked,
            Ok(Some(event)) => Ok(event.into_bits().into()),
            Err(status) => Err(status),
        },
        AdminCommand::Abort(abort) => match controller.request_abort(cid, abort.sqid, abort.cid) {
            Ok(true) => return Execution::Parked,
            Ok(false) => Ok(nvme_proto::admin::Abort::NOT_DONE.into()),
            Err(status) => Err(status),
        },
    };
    Execution::Complete(CommandOutcome::from(result))
}

/// Executes Keep Alive: its arrival restarted the timer; an error if the timer is disabled.
fn keep_alive(controller: &Controller) -> Result<u64, Status> {
    match controller.keep_alive() {
        Some(_) => Ok(0),
        None => Err(Status::KEEP_ALIVE_TIMEOUT_INVALID.with_dnr()),
    }
}
