import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** Prints the absolute hash that Java gives each name; names come as Base64 of UTF-16, one a line. */
class NameHash {
    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            var name = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_16BE);
            System.out.println(Math.abs(name.hashCode()));
        }
    }
}
