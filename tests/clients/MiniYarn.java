import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** A ResourceManager and a NodeManager in one JVM, until its standard input ends: MiniYarn CONF_FOLDER. */
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
    conf.set("yarn.nodemanager.resource.memory-mb", "8192");
    conf.set("yarn.nodemanager.resource.cpu-vcores", "8");
    conf.set("yarn.nodemanager.vmem-check-enabled", "false");
    conf.set("yarn.nodemanager.pmem-check-enabled", "false");
    conf.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
    conf.set("yarn.resourcemanager.hostname", "127.0.0.1");
    conf.set("yarn.nodemanager.hostname", "127.0.0.1");
    conf.setBoolean("yarn.minicluster.fixed.ports", false);
    MiniYARNCluster cluster = new MiniYARNCluster("snowpipe", 1, 1, 1);
    cluster.init(conf);
    cluster.start();
    for (String name : new String[] {"core-site.xml", "yarn-site.xml"}) {
      try (OutputStream out = new FileOutputStream(folder + "/" + name)) {
        cluster.getConfig().writeXml(out);
      }
    }
    System.out.println("ready " + cluster.getConfig().get("yarn.resourcemanager.webapp.address"));
    while (System.in.read() >= 0) {
    }
    // The NodeManager ends first, and its containers with it; what else is stopped waits for nothing of ours.
    Thread stop = new Thread(cluster::stop);
    stop.start();
    stop.join(STOP_MILLIS);
  }
}
