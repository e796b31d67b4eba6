import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.util.Properties;
import java.util.StringJoiner;

/**
 * What an application does with Snowflake's JDBC driver, against the service that the environment names.
 * Arguments: a folder of its own. Prints one line per result, {@code name: row | row}.
 */
public class JdbcClient {
    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        String url = System.getenv("SNOWPIPE_LOCAL_URL").replace("https://", "jdbc:snowflake://");
        Properties given = new Properties();
        given.put("account", System.getenv("SNOWPIPE_LOCAL_ACCOUNT"));
        given.put("user", System.getenv("SNOWPIPE_LOCAL_USER"));
        given.put("authenticator", "SNOWFLAKE_JWT");
        given.put("private_key_file", System.getenv("SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"));
        given.put("db", "LOCAL");
        given.put("schema", "PUBLIC");
        given.put("disableOCSPChecks", "true");
        given.put("loginTimeout", "30");
        given.put("tracing", "OFF");
        try (Connection connection = DriverManager.getConnection(url, given)) {
            work(connection, folder);
        }
        System.exit(0);
    }

    private static void work(Connection connection, Path folder) throws Exception {
        Statement statement = connection.createStatement();
        statement.execute(
            "CREATE OR REPLACE TABLE jdbc_rows (id INT, name VARCHAR, at TIMESTAMP_NTZ, price NUMBER(9, 2))");
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO jdbc_rows VALUES (?, ?, ?, ?)")) {
            for (int id = 1; id <= 2; id++) {
                insert.setInt(1, id);
                insert.setString(2, "row " + id);
                insert.setTimestamp(3, Timestamp.valueOf("2026-01-02 03:04:05.678"));
                insert.setBigDecimal(4, new java.math.BigDecimal("1.25"));
                insert.addBatch();
            }
            insert.executeBatch();
            insert.setInt(1, 3);
            insert.setNull(2, Types.VARCHAR);
            insert.setNull(3, Types.TIMESTAMP);
            insert.setNull(4, Types.DECIMAL);
            insert.executeUpdate();
        }
        print("rows", statement.executeQuery("SELECT id, name, at, price FROM jdbc_rows ORDER BY id"), 1, 2, 3, 4);
        setParameter(statement, "MULTI_STATEMENT_COUNT", 0);
        statement.execute("SELECT 1; SELECT 2");
        print("first", statement.getResultSet(), 1);
        statement.getMoreResults();
        print("second", statement.getResultSet(), 1);

        for (String format : new String[] {"ARROW", "JSON"}) {
            statement = connection.createStatement();
            statement.execute("ALTER SESSION SET JDBC_QUERY_RESULT_FORMAT = '" + format + "'");
            ResultSet many = statement.executeQuery(
                "SELECT seq4() AS n, 'row' AS t FROM TABLE(GENERATOR(ROWCOUNT => 250000)) ORDER BY 1");
            long count = 0;
            while (many.next() && many.getLong(1) == count && many.getString(2).equals("row")) {
                count++;
            }
            System.out.println("many: " + count);
        }

        Files.writeString(folder.resolve("more.csv"), "4,four\n5,five\n");
        Path got = Files.createDirectories(folder.resolve("got"));
        statement = connection.createStatement();
        statement.execute("CREATE OR REPLACE STAGE jdbc_files");
        String put = "PUT 'file://" + folder + "/more.csv' @jdbc_files/in";
        print("put", statement.executeQuery(put), 2, 7);
        print("put", statement.executeQuery(put), 2, 7);
        print("put", statement.executeQuery(put + " OVERWRITE = TRUE"), 2, 7);
        print("copied", statement.executeQuery(
            "COPY INTO jdbc_rows (id, name) FROM @jdbc_files/in FILE_FORMAT = (TYPE = CSV)"), 1, 2, 3, 4);
        print("got", statement.executeQuery("GET @jdbc_files/in 'file://" + got + "/'"), 1, 3);

        Statement limited = connection.createStatement();
        limited.setMaxRows(2);
        print("limited", limited.executeQuery("SELECT id FROM jdbc_rows ORDER BY id"), 1);

        print("tables", connection.getMetaData().getTables("LOCAL", "PUBLIC", "JDBC_ROWS", null), 1, 2, 3, 4);
        print("columns", connection.getMetaData().getColumns("LOCAL", "PUBLIC", "JDBC_ROWS", "%"), 4, 5, 6, 7);
    }

    /** Version 4 has the interface in another package than version 3. */
    private static void setParameter(Statement statement, String name, Object value) throws Exception {
        Class<?> own;
        try {
            own = Class.forName("net.snowflake.client.api.statement.SnowflakeStatement");
        } catch (ClassNotFoundException older) {
            own = Class.forName("net.snowflake.client.jdbc.SnowflakeStatement");
        }
        own.getMethod("setParameter", String.class, Object.class).invoke(statement.unwrap(own), name, value);
    }

    /** Print the columns of each row at these positions, from 1. */
    private static void print(String name, ResultSet rows, int... positions) throws Exception {
        StringJoiner lines = new StringJoiner(" ", name + ": ", "");
        while (rows.next()) {
            StringJoiner row = new StringJoiner(", ", "[", "]");
            for (int at : positions) {
                row.add(String.valueOf(rows.getString(at)));
            }
            lines.add(row.toString());
        }
        System.out.println(lines);
    }
}
