<%@ page contentType="text/html; charset=UTF-8" import="java.util.*" %><%
    @SuppressWarnings("unchecked") List<Integer> cart = (List<Integer>) session.getAttribute("cart");
    if (cart == null) { response.sendError(403, "log in first"); return; }
    int id = Integer.parseInt(request.getParameter("id"));
    cart.add(id);
%><!doctype html><title>Item <%= id %></title><h1>Item <%= id %></h1><p>
<% for (int line = 0; line < 30; line++) { %>It does what it says, line <%= line %>, and comes with a guarantee of two years and a manual.
<% } %><form method="post" action="pay.jsp"><input type="hidden" name="token" value="<%= session.getAttribute("token") %>"><button>Pay</button></form>
