import java.nio.file.Paths;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and a data node in one JVM, until its standard input ends: MiniHdfs FOLDER. */
public class MiniHdfs {
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
    Configuration conf = new Configuration();
    conf.set("dfs.namenode.fs-limits.min-block-size", "0");
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf, Paths.get(folder).toFile()).numDataNodes(1).build();
    cluster.waitActive();
    System.out.println("ready " + cluster.getNameNodePort() + ":" + cluster.getHttpUri(0).split(":")[2]);
    while (System.in.read() >= 0) {}
    System.exit(0); // what it has written goes with its folder
  }
}
