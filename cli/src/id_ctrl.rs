//! `feedrail id-ctrl`: the Identify Controller data structure (CNS 01h).

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::args::{Format, Output, Subsystem};
use crate::fields::{Field, decimal, digits, hex, json_object, lines, little_endian, text};
use crate::output;
use crate::session::Session;

const EXAMPLES: &str = "\
Examples:
  feedrail id-ctrl -a 192.0.2.10 -n NQN
  feedrail id-ctrl -a 192.0.2.10 -n NQN -o json";

/// Shows the Identify Controller data of a subsystem's controller, with nvme-cli's field names
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IdCtrl {
    #[command(flatten)]
    subsystem: Subsystem,
    #[command(flatten)]
    output: Output,
}

impl IdCtrl {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(&self.subsystem)?;
        let data = session.identify_controller()?;
        output::print(&match self.output.output_format {
            Format::Json => output::json(&Value::Object(to_json(&data))),
            Format::Normal => to_text(&data),
        })
    }
}

/// NVM Express Base Specification 2.0, Identify Controller data structure.
const FIELDS: [Field; 85] = [
    hex("vid", 0, 2),
    hex("ssvid", 2, 2),
    text("sn", 4, 20),
    text("mn", 24, 40),
    text("fr", 64, 8),
    decimal("rab", 72, 1),
    hex("ieee", 73, 3),
    hex("cmic", 76, 1),
    decimal("mdts", 77, 1),
    hex("cntlid", 78, 2),
    hex("ver", 80, 4),
    hex("rtd3r", 84, 4),
    hex("rtd3e", 88, 4),
    hex("oaes", 92, 4),
    hex("ctratt", 96, 4),
    hex("rrls", 100, 2),
    hex("cntrltype", 111, 1),
    digits("fguid", 112, 16),
    decimal("crdt1", 128, 2),
    decimal("crdt2", 130, 2),
    decimal("crdt3", 132, 2),
    hex("nvmsr", 253, 1),
    hex("vwci", 254, 1),
    hex("mec", 255, 1),
    hex("oacs", 256, 2),
    decimal("acl", 258, 1),
    decimal("aerl", 259, 1),
    hex("frmw", 260, 1),
    hex("lpa", 261, 1),
    decimal("elpe", 262, 1),
    decimal("npss", 263, 1),
    hex("avscc", 264, 1),
    hex("apsta", 265, 1),
    decimal("wctemp", 266, 2),
    decimal("cctemp", 268, 2),
    decimal("mtfa", 270, 2),
    decimal("hmpre", 272, 4),
    decimal("hmmin", 276, 4),
    decimal("tnvmcap", 280, 16),
    decimal("unvmcap", 296, 16),
    hex("rpmbs", 312, 4),
    decimal("edstt", 316, 2),
    decimal("dsto", 318, 1),
    decimal("fwug", 319, 1),
    decimal("kas", 320, 2),
    hex("hctma", 322, 2),
    decimal("mntmt", 324, 2),
    decimal("mxtmt", 326, 2),
    hex("sanicap", 328, 4),
    decimal("hmminds", 332, 4),
    decimal("hmmaxd", 336, 2),
    decimal("nsetidmax", 338, 2),
    decimal("endgidmax", 340, 2),
    decimal("anatt", 342, 1),
    hex("anacap", 343, 1),
    decimal("anagrpmax", 344, 4),
    decimal("nanagrpid", 348, 4),
    decimal("pels", 352, 4),
    decimal("domainid", 356, 2),
    decimal("megcap", 368, 16),
    hex("sqes", 512, 1),
    hex("cqes", 513, 1),
    decimal("maxcmd", 514, 2),
    decimal("nn", 516, 4),
    hex("oncs", 520, 2),
    hex("fuses", 522, 2),
    hex("fna", 524, 1),
    hex("vwc", 525, 1),
    decimal("awun", 526, 2),
    decimal("awupf", 528, 2),
    decimal("icsvscc", 530, 1),
    hex("nwpc", 531, 1),
    decimal("acwu", 532, 2),
    hex("ocfs", 534, 2),
    hex("sgls", 536, 4),
    decimal("mnan", 540, 4),
    decimal("maxdna", 544, 16),
    decimal("maxcna", 560, 4),
    text("subnqn", 768, 256),
    decimal("ioccsz", 1792, 4),
    decimal("iorcsz", 1796, 4),
    decimal("icdoff", 1800, 2),
    hex("fcatt", 1802, 1),
    decimal("msdbd", 1803, 1),
    hex("ofcs", 1804, 2),
];

const POWER_STATES_OFFSET: usize = 2048;
const POWER_STATE_BYTES: usize = 32;
const POWER_STATES_MAX: usize = 32;
const NPSS_OFFSET: usize = 263;

fn to_json(data: &[u8]) -> Map<String, Value> {
    let mut object = json_object(&FIELDS, data);
    object.insert("psds".into(), power_states(data).map(power_state_json).collect());
    object
}

fn to_text(data: &[u8]) -> String {
    let mut text = String::from("NVME Identify Controller:\n");
    text += &lines(&FIELDS, data, 10);
    for (number, state) in power_states(data).enumerate() {
        text += &format!("ps {number:>7}: mp:{:.2}W\n", max_power_watts(state));
    }
    text
}

/// The descriptors of the NPSS + 1 power states that the controller has.
fn power_states(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let count = usize::from(data.get(NPSS_OFFSET).copied().unwrap_or(0)) + 1;
    let descriptors = data.get(POWER_STATES_OFFSET..).unwrap_or_default();
    descriptors.chunks_exact(POWER_STATE_BYTES).take(count.min(POWER_STATES_MAX))
}

fn power_state_json(state: &[u8]) -> Value {
    let number =
        |offset: usize, length: usize| little_endian(&state[offset..offset + length]) as u64;
    json!({
        "max_power": number(0, 2),
        "max_power_scale": state[3] & 1,
        "non-operational_state": state[3] >> 1 & 1,
        "entry_lat": number(4, 4),
        "exit_lat": number(8, 4),
        "read_tput": state[12] & 0x1F,
        "read_lat": state[13] & 0x1F,
        "write_tput": state[14] & 0x1F,
        "write_lat": state[15] & 0x1F,
        "idle_power": number(16, 2),
        "idle_scale": state[18] >> 6,
        "active_power": number(20, 2),
        "active_power_work": state[22] & 7,
        "active_scale": state[22] >> 6,
    })
}

/// Maximum Power counts hundredths of a watt, or tenths of a milliwatt if its scale bit is set.
fn max_power_watts(state: &[u8]) -> f64 {
    let unit = if state[3] & 1 == 0 { 0.01 } else { 0.0001 };
    little_endian(&state[..2]) as f64 * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Vec<u8> {
        let mut data = vec![0; 4096];
        data[4..24].copy_from_slice(b"SN1                 ");
        data[77] = 5;
        data[80..84].copy_from_slice(&0x0002_0000_u32.to_le_bytes());
        data[516..520].copy_from_slice(&1024_u32.to_le_bytes());
        data[768..772].copy_from_slice(b"nqn.");
        data[1803] = 1;
        data
    }

    #[test]
    fn fields_are_in_order_and_do_not_overlap() {
        for pair in FIELDS.windows(2) {
            assert!(pair[0].range().end <= pair[1].range().start, "{}", pair[1].name());
        }
        assert!(FIELDS.last().unwrap().range().end <= POWER_STATES_OFFSET);
    }

    #[test]
    fn known_values_come_out() {
        let json = to_json(&data());
        assert_eq!(json["sn"], "SN1");
        assert_eq!(json["mdts"], 5);
        assert_eq!(json["ver"], 131_072);
        assert_eq!(json["nn"], 1024);
        assert_eq!(json["subnqn"], "nqn.");
        assert_eq!(json["msdbd"], 1);
        assert_eq!(json["psds"].as_array().unwrap().len(), 1);

        let text = to_text(&data());
        assert!(text.contains("mdts      : 5\n"), "{text}");
        assert!(text.contains("ver       : 0x20000\n"), "{text}");
    }

    #[test]
    fn every_power_state_count_is_safe() {
        for npss in 0..=u8::MAX {
            let mut data = data();
            data[NPSS_OFFSET] = npss;
            assert_eq!(power_states(&data).count(), (usize::from(npss) + 1).min(32));
        }
        assert_eq!(power_states(&[]).count(), 0);
    }
}
