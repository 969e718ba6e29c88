//! A simulated machine that reads and writes.

use std::net::IpAddr;

use feedrail_initiator::{
    ControllerOptions, EngineTurn, Host, HostId, HostNqn, MonotonicTime, ProviderStats,
};
use rdma::sim::{Sim, SimDevice, SimNetwork};
use rdma::{Device, GroupStats, Time};

/// A machine with an initiator.
pub struct HostNode {
    /// The initiator. A clone of it keeps it from vanishing.
    pub host: Host,
    device: SimDevice,
    ip: IpAddr,
}

impl HostNode {
    pub(super) fn new(network: &SimNetwork, ip: IpAddr, options: ControllerOptions) -> Self {
        let mut id = [0xF0; 16];
        if let IpAddr::V4(ip) = ip {
            id[..4].copy_from_slice(&ip.octets());
        }
        let id = HostId(id);
        let device = network.device(ip, 1).expect("nothing has the address");
        let host = Host::builder()
            .host_id(id)
            .host_nqn(HostNqn::from_host_id(id))
            .controller_options(options)
            .build_on::<Sim>(device.clone())
            .expect("a simulated device has room");
        Self { host, device, ip }
    }

    /// The IP address of its device.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The simulated device that it uses.
    pub fn device(&self) -> &SimDevice {
        &self.device
    }

    /// Counters of its provider's groups, added up.
    pub fn network_stats(&self) -> GroupStats {
        let mut sum = GroupStats::default();
        self.host.provider_stats().into_iter().for_each(|stats| sum += group_stats(stats));
        sum
    }

    /// Resources that connections and ranges that ended have left behind; empty if all is well.
    /// Slices that are still held stay registered and count.
    pub fn leftovers(&self) -> String {
        let stats = self.device.stats();
        match (stats.queue_pairs, stats.regions) {
            (0, 0) => String::new(),
            (queue_pairs, regions) => format!("{queue_pairs} queue pairs, {regions} regions, "),
        }
    }

    pub(super) fn turn(&self, now: Time) -> EngineTurn {
        self.host.turn(MonotonicTime::from_nanos(now.as_nanos()))
    }
}

/// The counters in the form that targets and other peers have them.
fn group_stats(stats: ProviderStats) -> GroupStats {
    GroupStats {
        packets_sent: stats.packets_sent,
        send_drops: stats.send_drops,
        packets_received: stats.packets_received,
        payload_bytes_sent: stats.payload_bytes_sent,
        payload_bytes_received: stats.payload_bytes_received,
        send_calls: stats.send_calls,
        receive_calls: stats.receive_calls,
        packets_retransmitted: stats.packets_retransmitted,
        packets_dropped: stats.packets_dropped,
        icrc_failures: stats.icrc_failures,
        rnr_naks_received: stats.rnr_naks_received,
        rnr_naks_sent: stats.rnr_naks_sent,
        ack_timeouts: stats.ack_timeouts,
        sequence_naks_sent: stats.sequence_naks_sent,
        sequence_naks_received: stats.sequence_naks_received,
        np_ecn_marked_packets: stats.np_ecn_marked_packets,
        np_cnp_sent: stats.np_cnp_sent,
        rp_cnp_handled: stats.rp_cnp_handled,
        doorbells: stats.doorbells,
    }
}
