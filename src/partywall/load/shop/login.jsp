<%@ page contentType="text/html; charset=UTF-8" import="java.util.*" %><%
    session.setMaxInactiveInterval(600);
    session.setAttribute("cart", new ArrayList<Integer>());
    session.setAttribute("token", UUID.randomUUID().toString());
%><!doctype html><title>Shop</title><p>Welcome. <a href="index.jsp">Go to the shop</a>
