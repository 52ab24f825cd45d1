//! Transports: zFabric's and RoCE's.
//!
//! zFabric is the transport that a hypervisor puts under the machines of its tenants (Crisan 2014, 5.3). A frame enters the
//! network only when its receiver has promised room for it ([`zcredit`]). Losses and reordering in the network are repaired
//! between the two hypervisors ([`zbridge`]). Both protocols run between two VMs, so a slow VM holds back its own senders and
//! no other VM.
//!
//! [`roce`] has the queue pairs of adapters, with DCQCN.

pub mod roce;
pub mod tcplight;
pub mod zbridge;
pub mod zcredit;
