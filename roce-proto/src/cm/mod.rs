//! The communication manager, which establishes and closes connections (InfiniBand volume 1,
//! chapter 12).
//!
//! [`Manager`] is a state machine for all connections of one endpoint. Its messages are management
//! datagrams (MADs) of 256 bytes, the payload of UD packets from QP1 to QP1; the caller sends and
//! receives those packets. [`ManagementMessage`] is a parsed MAD.
//!
//! Not supported: alternate paths and service id resolution (SIDR), which are declined; unreliable
//! and datagram services.

mod addressing;
mod caller;
mod comm_ids;
mod config;
mod connection;
mod declined;
mod drep;
mod dreq;
mod event;
mod field;
mod mad;
mod manager;
mod message;
mod mra;
mod private_data;
mod receive;
mod rej;
mod rep;
mod req;
mod rtu;
mod table;
mod time_wait;
mod timeout;
mod unsolicited;

#[cfg(test)]
mod tests;

pub use addressing::{Gid, IpHeader, ServiceId};
pub use comm_ids::{CommId, CommIdKey};
pub use config::{
    AcceptParams, Agreement, ConnectParams, ConnectionId, ListenerId, ManagerConfig, ManagerLimits,
};
pub use drep::Drep;
pub use dreq::Dreq;
pub use event::{ConnectionFailure, ConnectionRequest, Error, ManagerEvent};
pub use mad::{Attribute, MAD_BYTES, MESSAGE_BYTES, Mad, Sender};
pub use manager::{MadTransmit, Manager, ManagerCounters};
pub use message::{MadError, ManagementMessage};
pub use mra::{Mra, ReceivedMessage};
pub use private_data::MadPrivateData;
pub use rej::{Rej, RejectReason, RejectedMessage};
pub use rep::{Failover, Rep};
pub use req::{Req, ReqPath, TransportService};
pub use rtu::Rtu;
pub use timeout::TimeoutExponent;

/// The well-known Q_Key of QP1, in all packets with MADs.
pub const GSI_Q_KEY: u32 = 0x8001_0000;
