//! The connect sequence of a controller; each step is started by the response to the previous one.

use std::sync::Arc;
use std::time::Duration;

use nvme_proto::fabrics::{
    Connect, ConnectAttributes, ConnectData, ConnectLayer, ConnectParameter, ConnectResponse,
    PropertyGet, PropertySize,
};
use nvme_proto::feature::{AsyncEventConfig, Feature, QueueCounts, SetFeatures};
use nvme_proto::identify::{Cns, Identify, IdentifyController};
use nvme_proto::rdma_cm::{ConnectAccept, ConnectRequest};
use nvme_proto::registers::{Cap, Cc, CcCss, Csts, Property};
use nvme_proto::{Cntlid, Cqe, IntoBytes, Nsid, Qid, Sqe, Status, view};
use rdma::{ConnId, ConnOptions, ConnParams, PrivateData};

use crate::engine::HostEngine;
use crate::engine::arena::{ControllerKey, QueueKey};
use crate::engine::connections::ConnectionRole;
use crate::engine::health::KeepAlive;
use crate::engine::limits::{ControllerLimits, check_controller};
use crate::engine::queue::HostQueue;
use crate::engine::results::Outbox;
use crate::engine::session::{ControllerPhase, Opening, OpeningStep, set_cc};
use crate::engine::task::Task;
use crate::engine::wire::{Data, NewQueue};
use crate::types::authentication_failure::AuthenticationFailure;
use crate::types::error::{Error, ErrorKind, RefusedField};

/// Entries of the admin queue: the number that Linux requests, and the most that its target grants.
const ADMIN_ENTRIES: u16 = 32;

/// Pause between two reads of CSTS.
const READY_POLL: Duration = Duration::from_millis(20);

impl HostEngine {
    /// Starts an attempt to connect, or waits for the selection of the provider.
    pub(crate) fn open(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let now = self.clock;
        if self.waits_for_path(outbox) {
            return;
        }
        let controller = &mut self.controllers[key];
        let chunk = controller.bounce.claim().expect("no association, so no chunk is in use");
        let deadline = now + controller.options.connect_timeout;
        let busy = controller.session.first.as_ref().and_then(|first| first.busy.as_ref());
        controller.session.phase = ControllerPhase::Opening(Opening {
            step: OpeningStep::Connection,
            since: now,
            deadline: busy.map_or(deadline, |busy| busy.until.min(deadline)),
            poll_at: None,
            chunk,
            page_bytes: 4096,
            queue_entries: controller.options.queue_entries,
        });
        controller.session.epoch += 1;
        if let Some(outage) = &mut controller.session.outage {
            outage.tried = now;
        }
        controller.session.limits = ControllerLimits::NONE;
        self.open_queue(key, Qid::ADMIN, outbox);
    }

    fn open_queue(&mut self, key: ControllerKey, qid: Qid, outbox: &mut Outbox) {
        let options = &self.controllers[key].options;
        let conn_options = ConnOptions {
            type_of_service: options.type_of_service,
            ack_timeout_exponent: options.ack_timeout_exponent,
        };
        let (address, timeout) = (self.controllers[key].target.address, options.connect_timeout);
        match self.wire.resolve(self.clock, address, timeout, &conn_options) {
            Ok(conn) => {
                self.connections.insert(conn, ConnectionRole::Opening { controller: key, qid });
            }
            Err(error) => self.end_association(key, error, outbox),
        }
    }

    pub(crate) fn handle_resolved(
        &mut self,
        key: ControllerKey,
        qid: Qid,
        conn: ConnId,
        outbox: &mut Outbox,
    ) {
        if let Err(error) = self.request_connection(key, qid, conn) {
            self.end_association(key, error, outbox);
        }
    }

    fn request_connection(
        &mut self,
        key: ControllerKey,
        qid: Qid,
        conn: ConnId,
    ) -> Result<(), Error> {
        let entries = self.entries(key, qid);
        let slots = entries - 1;
        let controller = &mut self.controllers[key];
        let cntlid = if qid.is_admin() { Cntlid(0) } else { controller.session.limits.cntlid };
        let request = ConnectRequest::new(qid, cntlid, entries, entries.into());
        let params = ConnParams {
            responder_resources: self.wire.facts().caps.max_responder_resources,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data: PrivateData::new(request.as_bytes()).expect("32 bytes fit"),
        };
        let (queue, send_wr) = (self.queues.next_key(), HostQueue::<Task>::send_wr(slots));
        let new = NewQueue { key: queue, conn, slots, send_wr, scope: &controller.scope };
        self.wire.connect(self.clock, new, &params)?;
        self.pushed = true;
        controller.session.queues.push(queue);
        self.queues.insert(HostQueue::new(queue, key, qid, conn, slots));
        Ok(())
    }

    /// Returns the entries of a submission queue before it is connected.
    fn entries(&self, key: ControllerKey, qid: Qid) -> u16 {
        let wanted = match &self.controllers[key].session.phase {
            ControllerPhase::Opening(opening) if !qid.is_admin() => opening.queue_entries,
            _ => ADMIN_ENTRIES,
        };
        let max_wr = self.wire.facts().caps.max_wr;
        let device = HostQueue::<Task>::slots(max_wr) + 1;
        if device < wanted {
            tracing::info!(wanted, granted = device, "the RDMA device has shorter queues");
        }
        wanted.min(device).max(2)
    }

    pub(crate) fn handle_established(
        &mut self,
        key: ControllerKey,
        conn: ConnId,
        params: &ConnParams,
        outbox: &mut Outbox,
    ) {
        let queue = self.controllers[key].session.queues.last().copied();
        let Some(queue) = queue.filter(|&queue| self.queues[queue].conn() == conn) else {
            return;
        };
        if self.queues[queue].qid().is_admin() && self.should_share_memory(key) {
            return self.leave_for_shared_memory(key, outbox);
        }
        match ConnectAccept::parse(params.private_data.as_slice()) {
            None => {
                let what = "the acceptance of the connection has no valid private data";
                self.end_association(key, ErrorKind::Malformed(what).into(), outbox);
            }
            Some(accept) => {
                let queue = &mut self.queues[queue];
                // Zero is not valid, so the target does not report the number.
                if accept.receive_entries() != 0 {
                    queue.limit(accept.receive_entries());
                }
                self.send_connect(key, outbox);
            }
        }
    }

    fn send_connect(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        let queue = *controller.session.queues.last().expect("the queue that was just connected");
        let qid = self.queues[queue].qid();
        let cntlid =
            if qid.is_admin() { Cntlid::DYNAMIC } else { controller.session.limits.cntlid };
        let data = ConnectData::new(self.host.id, cntlid, controller.target.nqn, self.host.nqn);
        let ControllerPhase::Opening(opening) = &mut controller.session.phase else { return };
        opening.step = OpeningStep::Connect;
        controller.bounce.copy_in(&opening.chunk, 0, data.as_bytes());
        let keep_alive_timeout_ms =
            if qid.is_admin() { controller.options.keep_alive_ms } else { 0 };
        let entries = self.entries(key, qid);
        let sqe = Connect {
            qid,
            queue_entries: entries.into(),
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms,
        }
        .to_sqe();
        self.send_opening(key, queue, sqe, ConnectData::BYTES as u32, outbox);
    }

    fn send_step(
        &mut self,
        key: ControllerKey,
        step: OpeningStep,
        sqe: Sqe,
        data_bytes: usize,
        outbox: &mut Outbox,
    ) {
        let controller = &mut self.controllers[key];
        let ControllerPhase::Opening(opening) = &mut controller.session.phase else { return };
        opening.step = step;
        let Some(admin) = controller.session.admin_queue() else { return };
        self.send_opening(key, admin, sqe, data_bytes as u32, outbox);
    }

    fn send_opening(
        &mut self,
        key: ControllerKey,
        queue: QueueKey,
        sqe: Sqe,
        data_bytes: u32,
        outbox: &mut Outbox,
    ) {
        let controller = &self.controllers[key];
        let ControllerPhase::Opening(opening) = &controller.session.phase else { return };
        let data = match data_bytes {
            0 => Data::None,
            length => controller.bounce.data(&opening.chunk, length),
        };
        let queue = &mut self.queues[queue];
        self.pushed = true;
        self.counters.commands += 1;
        let issued = queue.issue(&mut *self.wire, sqe, data, Task::Opening);
        if let Err((error, _)) = issued {
            self.end_association(key, error.into(), outbox);
        }
    }

    /// Handles the response that the attempt waited for, and starts the next step.
    pub(crate) fn advance_opening(&mut self, key: ControllerKey, cqe: &Cqe, outbox: &mut Outbox) {
        if let Err(error) = self.take_answer(key, cqe, outbox) {
            self.end_association(key, error, outbox);
        }
    }

    fn take_answer(
        &mut self,
        key: ControllerKey,
        cqe: &Cqe,
        outbox: &mut Outbox,
    ) -> Result<(), Error> {
        let ControllerPhase::Opening(opening) = &self.controllers[key].session.phase else {
            return Ok(());
        };
        match opening.step {
            OpeningStep::Connection | OpeningStep::Authentication => {}
            OpeningStep::Connect => {
                self.take_connect(key, cqe)?;
                match self.controllers[key].wants_authentication() {
                    true => self.authenticate_new_queue(key, outbox),
                    false => self.queue_is_usable(key, outbox),
                }
            }
            OpeningStep::Capabilities => {
                let sqe = self.take_capabilities(key, cqe)?;
                self.send_step(key, OpeningStep::Enable, sqe, 0, outbox);
            }
            OpeningStep::Enable => {
                succeeded(cqe)?;
                self.send_step(key, OpeningStep::Ready, get(Property::CSTS), 0, outbox);
            }
            OpeningStep::Ready => self.take_ready(key, cqe, outbox)?,
            OpeningStep::Identify => {
                succeeded(cqe)?;
                self.take_identify(key)?;
                self.ask_for_queues(key, outbox);
            }
            OpeningStep::QueueCount => {
                self.take_queue_count(key, cqe)?;
                self.open_next_queue(key, outbox);
            }
        }
        Ok(())
    }

    /// Continues after the Connect of a queue, and its authentication.
    pub(crate) fn queue_is_usable(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        match self.controllers[key].session.queues.len() {
            1 => self.send_step(key, OpeningStep::Capabilities, get(Property::CAP), 0, outbox),
            _ => self.open_next_queue(key, outbox),
        }
    }

    fn take_connect(&mut self, key: ControllerKey, cqe: &Cqe) -> Result<(), Error> {
        let status = cqe.status();
        if !status.is_success() {
            let field = refused_field(status, ConnectParameter::from_dw0(cqe.dw0.get()));
            return Err(ErrorKind::ConnectRefused { status, field }.into());
        }
        let response = ConnectResponse::from_bits(cqe.dw0.get());
        if response.secure_channel_required() {
            let reason = AuthenticationFailure::SecureChannel;
            return Err(ErrorKind::Authentication { reason }.into());
        }
        let controller = &mut self.controllers[key];
        controller.session.auth.is_required = response.authentication_required();
        if controller.session.queues.len() == 1 {
            controller.session.limits.cntlid = response.cntlid();
        } else if response.cntlid() != controller.session.limits.cntlid {
            return Err(
                ErrorKind::Protocol("an I/O queue was connected to another controller").into()
            );
        }
        Ok(())
    }

    fn take_capabilities(&mut self, key: ControllerKey, cqe: &Cqe) -> Result<Sqe, Error> {
        succeeded(cqe)?;
        let cap = Cap::from_bits(cqe.result());
        if cap.mqes_z() == 0 {
            return Err(
                ErrorKind::Protocol("the controller allows queues of one entry only").into()
            );
        }
        let css = match cap.css() {
            css if css.nvm() => CcCss::NVM,
            css if css.iocss() => CcCss::ALL,
            css if css.noiocss() => CcCss::ADMIN_ONLY,
            _ => CcCss::NVM,
        };
        let cc = Cc::new()
            .with_en(true)
            .with_css(css)
            .with_mps(cap.mpsmin())
            .with_iosqes(Cc::IOSQES)
            .with_iocqes(Cc::IOCQES);
        let controller = &mut self.controllers[key];
        controller.session.cc = cc;
        let ControllerPhase::Opening(opening) = &mut controller.session.phase else {
            return Ok(get(Property::CSTS));
        };
        opening.queue_entries = opening.queue_entries.min(cap.mqes_z().saturating_add(1)).max(2);
        opening.page_bytes = 1 << (12 + u32::from(cap.mpsmin()));
        Ok(set_cc(cc))
    }

    fn take_ready(
        &mut self,
        key: ControllerKey,
        cqe: &Cqe,
        outbox: &mut Outbox,
    ) -> Result<(), Error> {
        succeeded(cqe)?;
        let csts = Csts::from_bits(cqe.dw0.get());
        if csts.cfs() {
            return Err(ErrorKind::Protocol("the controller reports a fatal status").into());
        }
        if csts.rdy() {
            let sqe = Identify::new(Cns::CONTROLLER).to_sqe();
            self.send_step(key, OpeningStep::Identify, sqe, Identify::DATA_BYTES, outbox);
        } else if let ControllerPhase::Opening(opening) = &mut self.controllers[key].session.phase {
            opening.poll_at = Some(self.clock + READY_POLL);
        }
        Ok(())
    }

    /// Reads CSTS again, until CSTS.RDY is set.
    pub(crate) fn poll_ready(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        if let ControllerPhase::Opening(opening) = &mut self.controllers[key].session.phase {
            opening.poll_at = None;
        }
        self.send_step(key, OpeningStep::Ready, get(Property::CSTS), 0, outbox);
    }

    fn take_identify(&mut self, key: ControllerKey) -> Result<(), Error> {
        let controller = &mut self.controllers[key];
        let ControllerPhase::Opening(opening) = &controller.session.phase else { return Ok(()) };
        let mut data = vec![0; Identify::DATA_BYTES];
        controller.bounce.copy_out(&opening.chunk, 0, &mut data);
        let identify: &IdentifyController = view(&data)?;
        let discovery = controller.is_discovery();
        check_controller(identify, controller.session.limits.cntlid, discovery)?;
        let page_shift = opening.page_bytes.trailing_zeros() - 12;
        controller.session.limits.take(identify, page_shift as u8, discovery);
        controller.checks.notices = match discovery {
            // Only a persistent discovery connection, which has Keep Alive, lasts until there are
            // changes.
            true => AsyncEventConfig::new().with_discovery_log(
                identify.oaes.discovery_log() && controller.options.keep_alive_ms > 0,
            ),
            false => AsyncEventConfig::new()
                .with_namespace_attribute(identify.oaes.namespace_attribute())
                .with_ana_change(identify.oaes.ana_change()),
        };
        // The states of the last connection are valid until the controller reports others.
        let has_groups = identify.cmic.ana() && !discovery;
        controller.checks.ana =
            has_groups.then(|| controller.checks.ana.take().unwrap_or_default());
        Ok(())
    }

    fn ask_for_queues(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        if controller.is_discovery() {
            return self.opened(key, outbox);
        }
        let feature = Feature::NumberOfQueues(QueueCounts::pairs(controller.options.io_queues));
        let sqe = SetFeatures { nsid: Nsid::NONE, save: false, feature }.to_sqe();
        self.send_step(key, OpeningStep::QueueCount, sqe, 0, outbox);
    }

    fn take_queue_count(&mut self, key: ControllerKey, cqe: &Cqe) -> Result<(), Error> {
        succeeded(cqe)?;
        let fid = nvme_proto::feature::FeatureId::NUMBER_OF_QUEUES;
        let granted = match Feature::parse(fid, cqe.dw0.get()) {
            Ok(Feature::NumberOfQueues(counts)) => counts.usable(),
            _ => return Err(ErrorKind::Malformed("the number of queues granted").into()),
        };
        let controller = &mut self.controllers[key];
        controller.session.limits.io_queues = granted.min(controller.options.io_queues);
        Ok(())
    }

    /// Connects the next I/O queue, or completes the attempt when all are connected.
    fn open_next_queue(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        let next = controller.session.queues.len();
        if let Some(&queue) = controller.session.queues.last().filter(|_| next > 1) {
            let queue = &mut self.queues[queue];
            queue.limit(controller.session.limits.max_commands);
            queue.set_in_capsule_bytes(controller.session.limits.in_capsule_bytes);
            controller.session.limits.queue_depth = queue.depth();
        }
        if next > usize::from(controller.session.limits.io_queues) {
            return self.opened(key, outbox);
        }
        if let ControllerPhase::Opening(opening) = &mut controller.session.phase {
            opening.step = OpeningStep::Connection;
        }
        self.open_queue(key, Qid(next as u16), outbox);
    }

    /// Completes an attempt to connect: the controller is ready for commands.
    fn opened(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let now = self.clock;
        let controller = &mut self.controllers[key];
        if let ControllerPhase::Opening(opening) =
            std::mem::replace(&mut controller.session.phase, ControllerPhase::Live(now))
        {
            controller.bounce.release(opening.chunk);
            let target = Arc::clone(&controller.target);
            self.take_down_fences_of(&target, opening.since, outbox);
        }
        let controller = &mut self.controllers[key];
        if controller.session.outage.take().is_some() {
            self.counters.reconnects += 1;
            outbox.note_move();
        }
        controller.health.keep_alive = KeepAlive::start(now, controller.options.keep_alive_ms);
        if let Some(first) = controller.session.first.take() {
            first.promise.keep(Ok(controller.session.limits), outbox);
        }
        match controller.session.auth.is_done {
            true => self.all_authenticated(key, outbox),
            false => controller.note_no_authentication(outbox),
        }
        let controller = &mut self.controllers[key];
        // The log page may have changed while there was no connection.
        controller.checks.log_changes.note(outbox);
        let cntlid = controller.session.limits.cntlid;
        tracing::info!(target = %controller.target, %cntlid, provider = self.wire.facts().provider, "connected");
        self.begin_checks(key, outbox);
    }
}

fn get(property: Property) -> Sqe {
    let size = property.size().unwrap_or(PropertySize::FourBytes);
    PropertyGet { property, size }.to_sqe()
}

fn succeeded(cqe: &Cqe) -> Result<(), Error> {
    cqe.status().ok().map_err(|status| match status.is(Status::AUTHENTICATION_REQUIRED) {
        true => ErrorKind::Authentication { reason: AuthenticationFailure::Withdrawn }.into(),
        false => ErrorKind::Status(status).into(),
    })
}

fn refused_field(status: Status, parameter: ConnectParameter) -> RefusedField {
    let data = parameter.layer == ConnectLayer::Data;
    match status {
        _ if status.is(Status::CONNECT_INVALID_HOST) => RefusedField::Host,
        _ if !status.is(Status::CONNECT_INVALID_PARAMETERS) => RefusedField::None,
        _ if parameter == ConnectParameter::SUBNQN => RefusedField::Subsystem,
        _ if data => RefusedField::Data,
        _ => RefusedField::Command,
    }
}
