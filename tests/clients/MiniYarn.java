import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.file.Paths;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * A ResourceManager and a NodeManager in one JVM, until its standard input ends: MiniYarn CONF_FOLDER.
 */
public class MiniYarn {
  private static final long STOP_MILLIS = 5_000;

  public static void main(String[] arguments) {
    try {
      run(arguments[0]);
    } catch (Throwable error) {
      error.printStackTrace();
      System.exit(1);
    }
    System.exit(0);
  }

  private static void run(String folder) throws Exception {
    YarnConfiguration conf = new YarnConfiguration();
    conf.set("fs.defaultFS", "file:///");
    conf.set("yarn.scheduler.capacity.root.queues", "default");
    conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
    conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
    conf.set("yarn.scheduler.minimum-allocation-mb", "256");
    conf.set("yarn.nodemanager.resource.cpu-vcores", "8");
    conf.set("yarn.nodemanager.vmem-check-enabled", "false");
    conf.set("yarn.nodemanager.pmem-check-enabled", "false");
    conf.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
    conf.set("yarn.nodemanager.hostname", "127.0.0.1");
    conf.set("yarn.resourcemanager.connect.retry-interval.ms", "500");
    conf.set("yarn.resourcemanager.recovery.enabled", "true");
    conf.set(
        "yarn.resourcemanager.store.class",
        "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore");
    conf.set("yarn.resourcemanager.fs.state-store.uri", Paths.get(folder, "state").toUri().toString());
    // Ports of the ResourceManager's choice, which stay in the configuration for the next one.
    for (String name : new String[] {"", "admin.", "scheduler.", "resource-tracker.", "webapp."}) {
      conf.set("yarn.resourcemanager." + name + "address", "127.0.0.1:0");
    }
    conf.setBoolean("yarn.minicluster.fixed.ports", true);
    conf.setBoolean("yarn.minicluster.use-rpc", true);
    MiniYARNCluster manager = new MiniYARNCluster("snowpipe-manager", 1, 0, 1, 1);
    manager.init(conf);
    manager.start();
    MiniYARNCluster node = new MiniYARNCluster("snowpipe", 0, 1, 1, 1) {
      @Override
      public boolean waitForNodeManagersToConnect(long timeout) {
        return true; // which it would ask a ResourceManager of its own
      }
    };
    node.init(new YarnConfiguration(manager.getConfig()));
    node.start();
    for (String name : new String[] {"core-site.xml", "yarn-site.xml"}) {
      try (OutputStream out = new FileOutputStream(folder + "/" + name)) {
        manager.getConfig().writeXml(out);
      }
    }
    System.out.println("ready " + manager.getConfig().get("yarn.resourcemanager.webapp.address"));
    while (System.in.read() != -1) {}
    // The NodeManager ends first, and its containers with it; what else is stopped waits for nothing of ours.
    Thread stop = new Thread(() -> {
      node.stop();
      manager.stop();
    });
    stop.start();
    stop.join(STOP_MILLIS);
  }
}
