//! Whether a network can lose or reorder frames: a transport that repairs nothing depends on this.

use super::error::Result;
use super::model::*;
use super::setting::Section;

/// Reasons why a network does not bring every frame once and in order.
pub(super) struct Losses {
    /// For frames of any priority: the cause, and the setting that avoids it.
    any: Option<(&'static str, &'static str)>,
    /// Priorities whose frames are dropped where there is no room.
    lossy: u8,
    /// The priority of the lossy vNICs, a bit.
    lossy_vnic: u8,
}

impl Losses {
    /// `repaired` says whether frames lost between servers are sent again below the machines' transports.
    pub fn of(
        server: &Server,
        vswitch: &VSwitch,
        pfc: &Pfc,
        adapter: &Adapter,
        topology: &Topology,
        repaired: bool,
    ) -> Losses {
        let rates = topology.levels.iter().chain([&topology.link]).map(|link| link.bit_error_rate);
        let damages = match &topology.shape {
            Shape::Hpcc { file } => file.content.links.iter().any(|link| link.packet_error_rate > 0.0),
            _ => rates.into_iter().any(|rate| rate > 0.0),
        };
        let lossy_vnic = server.lossy_priority();
        let any = if server.virtual_network && !vswitch.lossless {
            Some((
                "virtual switches drop frames",
                "set vswitch.lossless = true, or a scenario.hypervisor that is not \"lossy\"",
            ))
        } else if !server.virtual_network && adapter.when_full == WhenFull::Drop {
            Some(("adapters drop frames", "set adapter.when_full = \"stop\""))
        } else if repaired {
            // Lost or reordered frames between servers are repaired between the servers.
            return Losses { any: None, lossy: 0, lossy_vnic };
        } else if damages {
            Some(("links damage frames", "set bit_error_rate = 0, or zbridge.enabled = true"))
        } else if topology.routing.reorders() {
            Some(("frames overtake each other", "set zbridge.enabled = true, or another topology.routing"))
        } else {
            None
        };
        Losses { any, lossy: if pfc.enabled { !pfc.lossless } else { u8::MAX }, lossy_vnic }
    }

    /// Refuses a workload of these priorities, a bit each.
    pub fn check(&self, s: &Section<'_>, priorities: u8) -> Result<()> {
        let lossy = || {
            ("switches drop frames of its priority", "set scenario.flow_control = \"ZZ\", or zbridge.enabled = true")
        };
        if self.lossy_vnic & priorities != 0 {
            let message = "TCPlight sends nothing again, and frames of this priority go by the lossy vNICs";
            return Err(s
                .error_at(&["transport", "priority"], message)
                .hint("give it another priority, or use transport = \"tcp\""));
        }
        let Some((what, hint)) = self.any.or_else(|| (self.lossy & priorities != 0).then(lossy)) else { return Ok(()) };
        let message = format!("TCPlight sends nothing again and puts nothing in order, and here {what}");
        Err(s.error("transport", message).hint(format!("{hint}, or use transport = \"tcp\"")))
    }
}
