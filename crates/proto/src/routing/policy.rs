//! The choice among equal ports: the interface of a policy, and the list of all policies.

use crate::frame::{Frame, HostId};

/// The equal ports of one box towards a destination, numbered from 0: the upward ports in a tree, the ports on shortest
/// paths in a graph.
pub trait Ports {
    /// Number of ports; never 0.
    fn count(&self) -> u32;
    /// The port for a digit: the host's digit at this level in a tree, the host's number in a graph.
    fn digit(&self, host: HostId) -> u32;
    /// The port for a host's index under its edge switch plus the switch's own position; in a graph the same as
    /// [`Ports::digit`].
    fn index(&self, host: HostId) -> u32;
    /// A port chosen by a hash. The choices of different boxes are independent.
    fn pick(&self, hash: u64) -> u32;
}

/// The fields of a frame that a policy may use.
pub trait Fields {
    /// The source host.
    fn source(&self) -> HostId;
    /// The destination host.
    fn destination(&self) -> HostId;
    /// A value that is the same for all frames of a flow and differs between flows.
    fn flow_hash(&self) -> u64;
    /// A value that differs between the frames of a flow.
    fn frame_hash(&self) -> u64;
}

impl<F: Frame> Fields for F {
    #[inline(always)]
    fn source(&self) -> HostId {
        Frame::source(self)
    }
    #[inline(always)]
    fn destination(&self) -> HostId {
        Frame::destination(self)
    }
    #[inline(always)]
    fn flow_hash(&self) -> u64 {
        Frame::flow_hash(self)
    }
    #[inline(always)]
    fn frame_hash(&self) -> u64 {
        Frame::frame_hash(self)
    }
}

/// The fields that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The destination alone: routers store the choice.
    Destination,
    /// Source and destination.
    Ends,
    /// The flow: frames between the same hosts can take different ports.
    Flow,
    /// The frame: frames of the same flow can take different ports.
    Frame,
}

/// A policy. It has no state: the same fields always get the same port.
pub trait Choose {
    /// The fields that the policy uses. With [`Key::Destination`] only [`Fields::destination`] is defined.
    const KEY: Key;
    /// The port for a frame.
    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32;
}

/// A frame with a known destination only.
struct To(HostId);

impl Fields for To {
    fn source(&self) -> HostId {
        0
    }
    fn destination(&self) -> HostId {
        self.0
    }
    fn flow_hash(&self) -> u64 {
        0
    }
    fn frame_hash(&self) -> u64 {
        0
    }
}

/// Declares [`Policy`]: a line for each policy, with its module and its name.
macro_rules! policies {
    ($($module:ident::$policy:ident = $name:literal,)+) => {
        /// How a switch chooses among equal ports, and a host among its links.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Policy {
            $(#[doc = concat!("In scenarios: `", $name, "`.")] $policy,)+
        }

        impl Policy {
            /// Every policy.
            pub const ALL: &'static [Policy] = &[$(Policy::$policy),+];

            /// Its name in scenarios.
            pub const fn name(self) -> &'static str {
                match self { $(Policy::$policy => $name),+ }
            }

            /// The fields that decide.
            #[inline(always)]
            pub const fn key(self) -> Key {
                match self { $(Policy::$policy => <super::$module::$policy as Choose>::KEY),+ }
            }

            /// The port for a frame.
            #[inline(always)]
            pub(super) fn choose(self, ports: &impl Ports, frame: &impl Fields) -> u32 {
                match self { $(Policy::$policy => super::$module::$policy::choose(ports, frame)),+ }
            }
        }
    };
}

policies! {
    digits::DModK = "d-mod-k",
    digits::SModK = "s-mod-k",
    digits::TwoLevel = "two-level",
    hashes::Random = "random",
    hashes::Hash = "hash",
    hashes::HashPacket = "hash-packet",
    hashes::HashDestination = "hash-destination",
}

impl Policy {
    /// The policy with this name.
    pub fn named(name: &str) -> Option<Policy> {
        Policy::ALL.iter().copied().find(|policy| policy.name() == name)
    }

    /// The port towards a destination, if the destination alone decides.
    pub(super) fn by_destination(self, ports: &impl Ports, to: HostId) -> Option<u32> {
        (self.key() == Key::Destination).then(|| self.choose(ports, &To(to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_found_by_its_name() {
        for &policy in Policy::ALL {
            assert_eq!(Policy::named(policy.name()), Some(policy));
        }
        assert_eq!(Policy::named("hierarchical"), None);
    }
}
