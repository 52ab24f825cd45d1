//! The headroom that SONiC's buffer templates give a lossless priority group on switches with NVIDIA's Spectrum.
//!
//! Two rules are public: the table `pg_profile_lookup.ini` of each switch, and `buffer_headroom_mellanox.lua`, which computes
//! the headroom on the switch (`buffer_model = dynamic`). Both have the same sum with other parameters.

use crate::units::Length;
use sluicenet_proto::cee::headroom::peer_response_quanta;
use sluicenet_proto::units::Rate;

/// A generation of Spectrum, by the length of its cells (`asic_table.j2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asic {
    /// Its name.
    pub name: &'static str,
    /// Bytes of a cell of its buffer.
    pub cell: u32,
}

/// SN2000: of the table of the SN2700.
pub const SPECTRUM: Asic = Asic { name: "Spectrum", cell: 96 };
/// SN3000: of the table of the SN3700. Spectrum-3 has the same cells.
pub const SPECTRUM_2: Asic = Asic { name: "Spectrum-2", cell: 144 };

/// MTU of ports in the tables.
const TABLE_PORT_MTU: f64 = 9_216.0;
/// MTU of ports in `PORT`, which the script takes.
const PORT_MTU: f64 = 9_100.0;
/// MTU of lossless frames (`LOSSLESS_TRAFFIC_PATTERN` of `buffers_config.j2`).
const LOSSLESS_MTU: f64 = 1_024.0;
/// `mac_phy_delay` of `asic_table.j2`, 0.8 of 1,024 B at any rate.
const MAC_PHY: f64 = 0.8 * 1_024.0;
/// `peer_response_time` of `asic_table.j2`, 3.8 of 1,024 B at any rate: the tables have it, the script has quanta.
const PEER_RESPONSE: f64 = 3.8 * 1_024.0;
/// Metres that light travels in a second.
const SPEED_OF_LIGHT: f64 = 198e6;
/// Bytes of the smallest frame.
const SMALLEST: u32 = 64;
/// Sizes are rounded up to it.
const STEP: f64 = 1_024.0;

/// The parts of SONiC's sum, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// The largest lossless frame.
    pub lossless_mtu: f64,
    /// The largest frame of any kind.
    pub port_mtu: f64,
    /// Both directions of the cable.
    pub cable: f64,
    /// MAC and PHY.
    pub mac_phy: f64,
    /// The response of the peer.
    pub peer_response: f64,
    /// Memory of a byte, because frames do not fill their cells.
    pub occupancy: f64,
    /// The headroom, `xoff` of the buffer profile: all of these, rounded up.
    pub xoff: u64,
}

/// The row of `pg_profile_lookup.ini`: the smallest frames alone, and 3.8 KiB of response. No source gives these parameters;
/// they give every row of the tables.
pub fn looked_up(asic: Asic, rate: Rate, cable: Length) -> Sum {
    let bytes_on_cable = 2.0 * metres(cable) * rate.as_bps() as f64 / SPEED_OF_LIGHT / 8.0;
    sum(TABLE_PORT_MTU, bytes_on_cable, PEER_RESPONSE, occupancy(asic, 100.0))
}

/// The result of `buffer_headroom_mellanox.lua`: every second frame is one of the smallest, and the response is its
/// own by rate. The script divides megabits by 8 times 1,024.
pub fn computed(asic: Asic, rate: Rate, cable: Length) -> Sum {
    let bytes_on_cable = 2.0 * metres(cable) * (rate.as_bps() as f64 / 1e6) * 1e9 / SPEED_OF_LIGHT / (8.0 * 1_024.0);
    let peer_response = f64::from(peer_response_quanta(rate)) * 64.0;
    sum(PORT_MTU, bytes_on_cable, peer_response, occupancy(asic, 50.0))
}

fn metres(cable: Length) -> f64 {
    cable.mm as f64 / 1e3
}

/// Memory of a byte if so many percent of the frames fill their cells worst.
fn occupancy(asic: Asic, percent: f64) -> f64 {
    let cell = f64::from(asic.cell);
    let worst = if asic.cell > 2 * SMALLEST { cell / f64::from(SMALLEST) } else { 2.0 * cell / (1.0 + cell) };
    (100.0 - percent + percent * worst) / 100.0
}

fn sum(port_mtu: f64, cable: f64, peer_response: f64, occupancy: f64) -> Sum {
    let all = LOSSLESS_MTU + (port_mtu + cable + MAC_PHY + peer_response) * occupancy;
    let xoff = (libm::ceil(all / STEP) * STEP) as u64;
    Sum { lossless_mtu: LOSSLESS_MTU, port_mtu, cable, mac_phy: MAC_PHY, peer_response, occupancy, xoff }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CABLES: [u64; 3] = [5, 40, 300];

    /// Rate in Gb/s and `xoff` at 5, 40 and 300 m.
    type Row = (u64, [u64; 3]);

    fn check(asic: Asic, rows: &[Row]) {
        for (gbps, xoff) in rows {
            let of = |metres: u64| looked_up(asic, Rate::gbps(*gbps), Length { mm: metres * 1_000 }).xoff;
            assert_eq!(CABLES.map(of), *xoff, "{} at {gbps} Gb/s", asic.name);
        }
    }

    #[test]
    fn the_tables_of_two_switches_follow_from_the_sum() {
        // sonic-buildimage, device/mellanox: x86_64-mlnx_msn2700-r0/ACS-MSN2700/pg_profile_lookup.ini.
        check(
            SPECTRUM,
            &[
                (10, [29_696, 29_696, 36_864]),
                (25, [29_696, 31_744, 48_128]),
                (40, [29_696, 32_768, 59_392]),
                (50, [29_696, 33_792, 66_560]),
                (100, [30_720, 38_912, 104_448]),
            ],
        );
        // x86_64-mlnx_msn3700-r0/ACS-MSN3700/pg_profile_lookup.ini.
        check(
            SPECTRUM_2,
            &[
                (10, [32_768, 33_792, 40_960]),
                (25, [32_768, 35_840, 54_272]),
                (40, [33_792, 37_888, 66_560]),
                (50, [33_792, 38_912, 75_776]),
                (100, [33_792, 44_032, 117_760]),
                (200, [35_840, 55_296, 203_776]),
            ],
        );
    }

    #[test]
    fn the_script_counts_the_response_by_rate() {
        // 9,100 + 4,932 + 819 + 394 x 64 = 40,067; times (50 + 50 x 192/97) / 100 = 1.4897; plus 1,024: 60,712.
        let sum = computed(SPECTRUM, Rate::gbps(100), Length { mm: 40_000 });
        assert_eq!((sum.peer_response, sum.xoff), (25_216.0, 61_440));
        assert!((sum.cable - 4_932.0).abs() < 1.0 && (sum.occupancy - 1.4897).abs() < 1e-4, "{sum:?}");
    }
}
