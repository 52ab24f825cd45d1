fn main(){
 use std::mem::size_of;
 println!("Server {} Core?", size_of::<sluicenet_node::server::Server<sluicenet_lab::workload::HostApps>>());
 println!("Tcp {} Switch {} Adapter {} Node {}", size_of::<sluicenet_proto::tcp::Tcp>(), size_of::<sluicenet_node::switch::Switch<sluicenet_node::packet::Packet>>(), size_of::<sluicenet_node::adapter::Adapter<sluicenet_node::packet::Packet>>(), size_of::<sluicenet_sim::world::Node<sluicenet_lab::workload::HostApps>>());
 println!("FlowRecord {}", size_of::<sluicenet_node::guest::FlowRecord>());
}
