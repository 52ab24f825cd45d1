//! zFabric: the transport that a hypervisor puts under the machines of its tenants (Crisan 2014, 5.3).
//!
//! A frame enters the network only when its receiver has promised room for it ([`zcredit`]), and what the network loses or
//! reorders all the same is put right between the two hypervisors ([`zbridge`]). Both are between two VMs: a slow one holds back
//! those who send to it and nobody else.

pub mod tcplight;
pub mod zbridge;
pub mod zcredit;
